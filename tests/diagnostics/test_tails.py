"""The verdict on a tail, at the size of a weight matrix: 768 x 768."""

import numpy as np
import pytest
import torch
from libraries import CASES, make

import entryclip as ec
from entryclip.diagnostics import tail_index
from entryclip.diagnostics.tails import tail_of_largest

SIZE = 768 * 768
# The true index; None where there is no power law. A mixture has 5 % of the law, 3 times as wide, in a Gaussian bulk.
LAWS = {
    "gaussian": (lambda rng, n: rng.standard_normal(n), None),
    "laplace": (lambda rng, n: rng.laplace(size=n), None),
    "t4": (lambda rng, n: rng.standard_t(4, n), 4.0),
    "t2": (lambda rng, n: rng.standard_t(2, n), 2.0),
    "cauchy": (lambda rng, n: rng.standard_cauchy(n), 1.0),
}


def draw(name, share, seed, scale=3):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(SIZE).astype(np.float32)
    heavy = slice(None) if share == 1 else np.flatnonzero(rng.random(SIZE) < share)
    x[heavy] = (1 if share == 1 else scale) * LAWS[name][0](rng, x[heavy].size)
    return x


@pytest.mark.parametrize("share", [1, 0.05])
@pytest.mark.parametrize("name", LAWS)
def test_verdicts(name, share):
    """Of ten draws at least eight are judged right, and the interval covers the truth in as many.

    Going by the shares in results/tails, the worst of these fails for one choice of seeds in 20, most of them never.
    """
    truth = LAWS[name][1]
    found = [tail_index(draw(name, share, seed)) for seed in range(10)]
    right = "not a power law" if truth is None else "power law"
    assert sum(each.verdict == right for each in found) >= 8
    if truth is not None:
        assert sum(each.interval[0] <= truth <= each.interval[1] for each in found) >= 8
        assert all(each.interval[0] <= each.index <= each.interval[1] for each in found)


def test_the_headline_leaves_out_the_bulk():
    """5 % of t_4 at the scale of the bulk: the largest 1 % are mostly Gaussian and would give index 6.

    With seed 8 they even have the least KS distance of all k; that a power law is rejected there rules them out.
    """
    found = [tail_index(draw("t4", 0.05, seed, scale=1)) for seed in range(4, 9)]
    assert max(each.k for each in found) < 2000
    assert 3.2 < np.median([each.index for each in found]) < 4.6
    assert min(1 / each.plot.hill[-1] for each in found) > 5.5


def test_two_light_laws_are_not_taken_for_a_power_law():
    """5 % of Laplace noise at the scale of the bulk: right in four of five draws (results/tails), here in six of ten.

    At the cap, where the bulk is mixed in, it looks like a power law; one choice of seeds in 30 fails.
    """
    found = [tail_index(draw("laplace", 0.05, seed, scale=1)) for seed in range(10)]
    assert sum(each.verdict == "not a power law" for each in found) >= 6
    assert np.mean([each.plot.evidence()[-1] for each in found]) > 25


def test_hill_and_moment_by_their_formulas():
    x = draw("t2", 1, 0)
    found = tail_index(x)
    top = np.sort(np.abs(x.astype(np.float64)))[::-1]
    excess = np.log(top[: found.k] / top[found.k])
    m1, m2 = excess.mean(), (excess**2).mean()
    assert found.index == pytest.approx(1 / m1)
    assert found.moment == pytest.approx(m1 + 1 - 0.5 / (1 - m1**2 / m2))
    assert found.moment_interval[0] < found.moment < found.moment_interval[1]
    assert found.k <= 0.01 * SIZE == pytest.approx(found.plot.k[-1], abs=1)
    fit = np.abs(np.exp(-excess / m1)[:, None] - np.arange(found.k + 1)[[0, -1]] / found.k)  # both ends at least
    assert found.distance >= fit[[0, -1], [0, 1]].max() - 1e-12


def test_difference_of_the_estimators_has_variance_one_over_k():
    """For Pareto tails of any index. 500 draws: the variance is within 25 % (4 standard deviations), 1 + O(1/k)."""
    from entryclip.diagnostics.tails import _estimates

    rng = np.random.default_rng(0)
    for gamma in (0.25, 1.0):
        found = [_estimates(np.sort(gamma * rng.exponential(size=1000))[::-1]) for _ in range(500)]
        difference = np.array([moment - hill for hill, moment, *_ in found])
        assert 1000 * np.mean(difference**2) == pytest.approx(1, abs=0.25)


def test_print():
    assert str(tail_index(draw("cauchy", 1, 0))).startswith("power law, index 1 [0.")
    assert str(tail_index(draw("gaussian", 1, 0))).startswith("not a power law: the moment estimator is -0.")
    few = tail_index(draw("t2", 1, 0)[:20_000])
    assert str(few) == "undecided: 20000 non-zero entries leave 200 in the tail, 300 are needed"
    assert 1 < few.index < 4


@pytest.mark.parametrize(("library", "dtype"), CASES)
def test_libraries_and_dtypes(library, dtype):
    x = draw("t2", 1, 1)[:100_000].reshape(500, 200)
    expected, found = tail_index(x), tail_index(make(library, dtype, x))
    rough = dtype in ("bfloat16", "float16")
    assert found.index == pytest.approx(expected.index, rel=0.15 if rough else 1e-5)


def test_it_counts_the_entries_that_are_not_zero():
    x = draw("t2", 1, 2)
    padded = np.concatenate([x, np.zeros(10 * SIZE, np.float32)])
    assert tail_index(padded).index == tail_index(x).index


def test_scale_and_sign_do_not_matter():
    x = draw("t2", 1, 3).astype(np.float64)
    assert tail_index(-1e100 * x).index == pytest.approx(tail_index(x).index)


def test_clipped_entries_are_no_power_law():
    found = tail_index(ec.hard(0.9)(torch.from_numpy(draw("cauchy", 1, 4))))
    assert found.verdict == "not a power law"
    assert "entries are equal, as after a clip" in str(found)
    assert found.index == np.inf


@pytest.mark.parametrize("equal", [2, 25, 30])
def test_some_equal_entries_are_no_trouble(equal):
    x = draw("t2", 1, 5)
    edge = np.sort(np.abs(x))[-equal]
    found = tail_index(np.clip(x, -edge, edge), level=1 - 1e-12)
    assert np.isfinite([found.index, found.moment, *found.interval]).all()
    assert np.abs(found.plot.moment).max() < 1e9  # at k = 30 the excesses have no spread at all


@pytest.mark.parametrize(
    ("x", "keywords", "words"),
    [
        (np.ones(500), {}, "x has 500 non-zero entries, too few for a tail: at least 3100 are needed"),
        (np.zeros((400, 400)), {}, "x has 0 non-zero entries"),
        (np.append(np.ones(5000), np.nan), {}, "NaN or infinite"),
        (np.append(np.ones(5000), np.inf), {}, "NaN or infinite"),
        (np.ones(5000), {"cap": 0.0}, r"cap must be in \(0, 0.5\]"),
        (np.ones(5000), {"cap": 0.9}, r"cap must be in \(0, 0.5\]"),
        (np.ones(5000), {"level": 1.0}, r"level must be in \(0, 1\)"),
    ],
)
def test_bad_input(x, keywords, words):
    with pytest.raises(ValueError, match=words):
        tail_index(x, **keywords)


def test_the_largest_entries_are_enough():
    x = np.abs(np.random.default_rng(0).standard_t(2, 200_000))
    whole, part = tail_index(x), tail_of_largest(np.sort(x)[::-1][:2001], 200_000)
    assert (part.verdict, part.index, part.interval, part.k) == (whole.verdict, whole.index, whole.interval, whole.k)
    with pytest.raises(ValueError, match="more than 30 of the entries, got 30 of 5000"):
        tail_of_largest(np.arange(30, 0, -1.0), 5000)
