import pytest
import torch

from entryclip.lab.paper import synthetic_layers
from entryclip.lab.paper.probe_trust import STUDY, study


@pytest.fixture(scope="module")
def rows():
    config = study.ProbeTrustConfig(shapes=((24, 20),), layers=1, directions=2)
    return [row for unit in study.units(config) for row in study.run_unit(config, unit)]


def test_rows_tables_and_figures(rows):
    assert [row["kind"] for row in rows] == list(synthetic_layers.NOISE_KINDS)
    assert set(STUDY.figures(rows)) == set(STUDY.captions)
    (table,) = STUDY.tables(rows).values()
    assert len(table) == 8
    assert table[-1]["flagged"] == 1
    assert table[0]["flagged"] == 0


def test_claims_follow_the_rows(rows):
    ones = {"r_hat": [1.0, 1.0], "plain_r_hat": [1.0, 1.0]}
    wrong = [{**row, **ones, "verdict": "no spikes" if row["kind"] == "cauchy" else "spikes"} for row in rows]
    assert not any(claim.holds for claim in STUDY.claims(wrong))
    assert all(claim.holds for claim in STUDY.claims(rows)[:3])


def test_gradients_are_signal_plus_noise():
    model = synthetic_layers.SyntheticLayers(
        {"a": (synthetic_layers.gaussian, (30, 40)), "b": (synthetic_layers.cauchy, (30, 40))}
    )
    synthetic_layers.loss(model, 3).backward()
    for name, g in model.gradients(3).items():
        torch.testing.assert_close(model.weights[name].grad, g)
    mean = torch.stack([model.gradients(i)["a"] for i in range(400)]).mean(0)
    assert float((mean - model.signals["a"]).abs().max()) < 0.25  # 5 standard errors
    assert not torch.equal(model.gradients(0)["a"], model.gradients(1)["a"])


@pytest.mark.parametrize("wrong", [{"layers": 0}, {"shapes": ((4, 9),)}, {"shapes": ()}])
def test_bad_input(wrong):
    with pytest.raises(ValueError, match="must be"):
        study.ProbeTrustConfig(**wrong)
