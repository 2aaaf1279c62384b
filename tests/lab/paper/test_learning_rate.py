import pytest

from entryclip.lab.paper.learning_rate import STUDY, study
from entryclip.lab.paper.learning_rate.claims import best_rate


def test_rows_and_claims_of_a_small_run():
    config = study.LearningRateConfig(rates=(3e-3, 3e-2, 0.3), seeds=1, steps=30, width=16)
    rows = list(study.run_unit(config, {}))
    assert len(rows) == 3 * len(study.CLIPS)
    assert rows == list(study.run_unit(config, {}))  # the same numbers again
    assert all(row["loss"] > 0 for row in rows)
    kept = {row["method"]: row["rms_kept"] for row in rows}
    assert kept["AdamW (torch)"] == 1
    assert kept["smooth(.995), preserve_rms"] == pytest.approx(1, rel=1e-3)
    assert 0.4 < kept["smooth(.995)"] < 0.8
    assert len(STUDY.claims(rows)) == 3
    assert set(STUDY.figures(rows)) == set(STUDY.captions)


def test_the_optimum_lies_between_the_grids_points():
    curve = {rate: [1 + (rate / 0.02 - 0.02 / rate) ** 2] for rate in (0.005, 0.01, 0.025, 0.05)}
    assert best_rate(curve) == pytest.approx(0.02, rel=0.15)
    assert best_rate({0.1: [3.0], 0.2: [2.0]}) == 0.2


@pytest.mark.parametrize("wrong", [{"rates": ()}, {"rates": (-1.0,)}, {"seeds": 0}, {"steps": 0}])
def test_bad_input(wrong):
    with pytest.raises(ValueError, match="must be"):
        study.LearningRateConfig(**wrong)
