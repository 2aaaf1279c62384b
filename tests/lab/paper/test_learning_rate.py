import pytest

from entryclip.lab.paper.learning_rate import study as experiment


def test_rows_and_claims_of_a_small_run():
    config = experiment.Config(rates=(3e-3, 3e-2, 0.3), seeds=1, steps=30, width=16)
    rows = list(experiment.run(config))
    assert len(rows) == 3 * len(experiment.METHODS)
    assert rows == list(experiment.run(config))  # the same numbers again
    assert all(row["loss"] > 0 for row in rows)
    kept = {row["method"]: row["rms_kept"] for row in rows}
    assert kept["AdamW (torch)"] == 1
    assert kept["smooth(.995), preserve_rms"] == pytest.approx(1, rel=1e-3)
    assert 0.4 < kept["smooth(.995)"] < 0.8
    assert len(experiment.claims(rows)) == 3
    assert set(experiment.plot(rows)) == set(experiment.CAPTIONS)


def test_the_optimum_lies_between_the_grids_points():
    curve = {rate: [1 + (rate / 0.02 - 0.02 / rate) ** 2] for rate in (0.005, 0.01, 0.025, 0.05)}
    assert experiment._optimum(curve) == pytest.approx(0.02, rel=0.15)
    assert experiment._optimum({0.1: [3.0], 0.2: [2.0]}) == 0.2


@pytest.mark.parametrize("wrong", [{"rates": ()}, {"rates": (-1.0,)}, {"seeds": 0}, {"steps": 0}])
def test_bad_input(wrong):
    with pytest.raises(ValueError, match="must be"):
        experiment.Config(**wrong)
