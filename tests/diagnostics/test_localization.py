import math

import numpy as np
import pytest
import torch
from libraries import make
from scipy import stats

import entryclip as ec

RNG = np.random.default_rng(0)


def planted(m, n, seed=0):
    """A Gaussian matrix with a top direction that stands out."""
    rng = np.random.default_rng(seed)
    u, v = rng.standard_normal(m), rng.standard_normal(n)
    return 3 * np.outer(u, v) / math.sqrt(max(m, n)) + rng.standard_normal((m, n))


def by_hand(e, g, k):
    u, _, vt = np.linalg.svd(g)
    terms = u[:, k - 1 : k] * e * vt[k - 1]
    return terms.sum() ** 2 / (e**2).sum(), (terms**2).max() / (e**2).sum()


@pytest.mark.parametrize("shape", [(20, 30), (30, 20), (7, 7)])
def test_values_are_the_definitions(shape):
    """Eq. localization_metric and normalized_localization."""
    G, E = planted(*shape), RNG.standard_normal((2, 3, *shape))
    found = ec.diagnostics.localization(E, G, k=(1, 2, 5))
    assert found.r.shape == found.r_max.shape == found.ratio.shape == found.normalized.shape == (2, 3, 3)
    for i in np.ndindex(2, 3):
        for j, k in enumerate((1, 2, 5)):
            r, r_max = by_hand(E[i], G, k)
            assert found.r[*i, j] == pytest.approx(r, rel=1e-6)
            assert found.r_max[*i, j] == pytest.approx(r_max, rel=1e-6)
            assert found.ratio[*i, j] == pytest.approx(r_max / r, rel=1e-6)
    medians = np.array([null.median for null in found.nulls])
    np.testing.assert_allclose(found.normalized, found.ratio / medians)
    alone = ec.diagnostics.localization(E[1, 2], G, k=5)
    assert alone.ratio == pytest.approx(found.ratio[1, 2, 2])
    assert alone.k == 5
    assert alone.draws == 1


@pytest.mark.parametrize(
    ("library", "dtype"), [("torch", "float32"), ("torch", "bfloat16"), ("numpy", "float32"), ("jax", "float32")]
)
def test_other_libraries_and_dtypes(library, dtype):
    G, E = planted(24, 16), RNG.standard_normal((2, 24, 16))
    expected = ec.diagnostics.localization(E, G)
    found = ec.diagnostics.localization(make(library, dtype, E), make(library, dtype, G))
    np.testing.assert_allclose(found.r_max, expected.r_max, rtol=0.1 if dtype == "bfloat16" else 1e-4)


def test_it_does_not_touch_the_graph():
    E = torch.randn(2, 9, 9, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert isinstance(ec.diagnostics.localization(E, torch.from_numpy(planted(9, 9))).r, np.ndarray)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_scale_does_not_matter(scale):
    G, E = planted(20, 20), RNG.standard_normal((20, 20))
    found = ec.diagnostics.localization(scale * E, scale * G)
    assert found.normalized == pytest.approx(float(ec.diagnostics.localization(E, G).normalized), rel=1e-9)


def test_the_three_regimes():
    """tab:localization-regimes: a spike has R = 1, alignment r = 1; with the null both are told from Gaussian noise."""
    G = planted(80, 60)
    u, _, vt = np.linalg.svd(G)
    spike = np.zeros((80, 60))
    spike[int(np.abs(u[:, 0]).argmax()), int(np.abs(vt[0]).argmax())] = -7.0
    found = ec.diagnostics.localization(spike, G)
    assert found.ratio == pytest.approx(1)
    assert found.normalized > 5
    aligned = ec.diagnostics.localization(np.outer(u[:, 0], vt[0]), G)
    assert aligned.r == pytest.approx(1)
    assert aligned.r_max == pytest.approx((u[:, 0] ** 2).max() ** 2 * (vt[0] ** 2).max() ** 2)
    assert aligned.normalized < 0.1
    assert aligned.p_aligned < 1e-6
    assert aligned.p_spike == pytest.approx(1)


def test_p_values_of_whole_matrices_are_uniform():
    """KS test at 10^4 draws for k = 1 and 3; each fails by chance for one seed in 1000."""
    G = planted(16, 24)
    found = ec.diagnostics.localization(np.random.default_rng(5).standard_normal((10_000, 16, 24)), G, k=(1, 3))
    for column in (0, 1):
        assert stats.kstest(found.p_spike[:, column], "uniform").pvalue > 1e-3


def test_medians_and_their_words():
    G, E = planted(60, 60), np.random.default_rng(1).standard_normal((21, 60, 60))
    gaussian = ec.diagnostics.localization(E, G)
    low, high = gaussian.band()[0]
    assert low < gaussian.median[0] < high
    assert gaussian.p_median()[0] > 0.05
    assert str(gaussian).endswith("like Gaussian noise")
    u, _, vt = np.linalg.svd(G)
    E[:, np.abs(u[:, 0]).argmax(), np.abs(vt[0]).argmax()] += 500.0
    spiked = ec.diagnostics.localization(E, G)
    assert spiked.p_median()[0] < 1e-4
    assert str(spiked).endswith("single entries stand out")
    aligned = ec.diagnostics.localization(E * 0.01 + 100 * G, G, k=(1,))
    assert str(aligned).endswith("aligned with G")
    assert aligned.participation.shape == (1, 2)
    assert 10 < aligned.participation[0, 0] <= 60


def test_terms_that_cancel_give_an_infinite_ratio():
    G = np.diag([2.0, 1.0]) @ np.array([[1.0, 1.0], [1.0, -1.0]]) / 2**0.5  # v = (1, 1) / sqrt 2, u = e_1
    found = ec.diagnostics.localization(np.array([[1.0, -1.0], [0.0, 0.0]]), G)
    assert found.ratio > 1e20
    assert not np.isnan(found.normalized)
    assert found.p_spike < 1e-4


@pytest.mark.parametrize(
    ("E", "G", "k", "words"),
    [
        (np.ones((3, 4)), np.ones((4, 3)), 1, r"E must have matrices of G's shape, \(..., 4, 3\), got \(3, 4\)"),
        (np.ones((3, 3)), np.ones((2, 3, 3)), 1, "G must be one matrix"),
        (np.ones(3), planted(3, 3), 1, "E must have matrices"),
        (np.zeros((3, 3)), planted(3, 3), 1, "E is zero"),
        (np.ones((3, 3)), np.zeros((3, 3)), 1, "G is zero"),
        (np.ones((3, 3)), np.eye(3), 1, "singular value 1 of G is not simple"),
        (np.ones((3, 3)), np.full((3, 3), np.nan), 1, "G has 9 entries that are NaN or infinite"),
        (np.full((2, 3, 3), np.inf), planted(3, 3), 1, "E has 9 entries that are NaN or infinite"),
        (np.ones((3, 3)), planted(3, 3), 0, "k must be from 1 to 3"),
        (np.ones((3, 3)), planted(3, 3), 4, "k must be from 1 to 3"),
        (np.ones((3, 3)), planted(3, 3), (), "k must be from 1 to 3"),
        (np.ones((3, 3)), planted(3, 3), (1, 2.5), "k must be from 1 to 3"),
        (np.ones((3, 3)), np.outer([1.0, 2, 3], [1.0, 2, 3]), 2, "k must be at most 1, the rank of G, got 2"),
        (np.array([[0.0, 1.0], [0.0, 0.0]]), np.diag([1.0, 0.0]), 1, "R would be 0/0"),
    ],
)
def test_bad_input(E, G, k, words):
    with pytest.raises(ValueError, match=words):
        ec.diagnostics.localization(E, G, k)


def test_rounded_rank_one_has_rank_one():
    u, v = RNG.standard_normal(50), RNG.standard_normal(40)
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(ValueError, match="the rank of G"):
            ec.diagnostics.localization(torch.ones(50, 40), make("torch", dtype, np.outer(u, v)), k=2)


def test_integers_are_refused():
    with pytest.raises(TypeError, match="E must be one of"):
        ec.diagnostics.localization(np.ones((2, 2), int), np.diag([2.0, 1.0]))
