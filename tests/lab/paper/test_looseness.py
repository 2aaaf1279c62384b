import pytest

import entryclip as ec
from entryclip.lab.paper.looseness import STUDY, study


@pytest.fixture(scope="module")
def rows():
    return list(study.run_unit(study.LoosenessConfig.quick(), {}))


def test_rows_claims_and_figure(rows):
    entries = [row for row in rows if row["kind"] == "entry"]
    assert len(entries) == 2 * 15
    assert len(rows) - len(entries) == 4 * 5
    assert all(claim.holds for claim in STUDY.claims(rows))
    assert set(STUDY.figures(rows)) == set(STUDY.captions)
    noise = ec.noise.Contamination(0.05, 1.0, ec.noise.Cauchy(1.0))
    post = ec.theory.guarantee("post", "hard", noise, bound=1.0, shape=(768, 768), epsilon=0.1)
    assert entries[0]["post_threshold"] == post.threshold


def test_a_bound_that_fails_is_seen(rows):
    broken = [{**row, "exact_rho": 2 * row["rho"]} if row["kind"] == "entry" else row for row in rows]
    assert [claim.holds for claim in STUDY.claims(broken)] == [False, True, True]


@pytest.mark.parametrize(
    ("wrong", "words"), [({"points": 2}, "points must be"), ({"alpha": -1.0}, "must be a number in")]
)
def test_bad_input(wrong, words):
    with pytest.raises(ValueError, match=words):
        study.LoosenessConfig(**wrong)
