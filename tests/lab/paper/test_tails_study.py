import pytest
import torch

from entryclip.lab.paper.tails import STUDY, study
from entryclip.lab.paper.tails.claims import accuracies


@pytest.fixture(scope="module")
def rows():
    return list(study.run_unit(study.TailsConfig(draws=1), {}))


def test_rows_and_figures(rows):
    assert len(rows) == len(study.CASES) == 14
    assert set(STUDY.figures(rows)) == set(STUDY.captions)
    found = accuracies(study.TailEstimate.from_rows(rows))
    assert sum(each.right for each in found.values()) >= 11  # of 14; one draw each, nearly all of them above 85 %


def test_variance_of_a_sampled_mixture():
    generator = torch.Generator().manual_seed(0)
    x = study.sample_mixture(study.TailCase("Laplace", 0.05, 3.0), 512, generator)
    expected = 0.95 + 0.05 * 9 * 2  # the variance of Laplace is 2
    assert float(x.var()) == pytest.approx(expected, rel=0.05)


def test_claims_follow_the_rows(rows):
    wrong = [{**row, "verdict": "not a power law", "low": 100.0, "high": 101.0} for row in rows]
    assert not any(claim.holds for claim in STUDY.claims(wrong))


@pytest.mark.parametrize("wrong", [{"side": 100}, {"draws": 0}])
def test_bad_input(wrong):
    with pytest.raises(ValueError, match="must be"):
        study.TailsConfig(**wrong)
