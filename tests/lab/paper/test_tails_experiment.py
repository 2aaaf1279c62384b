import pytest
import torch

from entryclip.lab.paper.tails import study as experiment


@pytest.fixture(scope="module")
def rows():
    return list(experiment.run(experiment.Config(draws=1)))


def test_rows_and_figures(rows):
    assert len(rows) == len(experiment.CASES) == 14
    assert set(experiment.plot(rows)) == set(experiment.CAPTIONS)
    shares = [experiment.right(rows, case)["right"] for case in experiment.CASES]
    assert sum(shares) >= 11  # of 14; one draw each, nearly all of them above 85 %


def test_samples_are_the_mixtures_they_say():
    generator = torch.Generator().manual_seed(0)
    x = experiment.sample("Laplace", 0.05, 3.0, 512, generator)
    expected = 0.95 + 0.05 * 9 * 2  # the variance of Laplace is 2
    assert float(x.var()) == pytest.approx(expected, rel=0.05)


def test_claims_follow_the_rows(rows):
    wrong = [{**row, "verdict": "not a power law", "low": 100.0, "high": 101.0} for row in rows]
    assert not any(claim["holds"] for claim in experiment.claims(wrong))


@pytest.mark.parametrize("wrong", [{"side": 100}, {"draws": 0}])
def test_bad_input(wrong):
    with pytest.raises(ValueError, match="must be"):
        experiment.Config(**wrong)
