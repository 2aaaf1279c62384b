"""What noise does to the spectrum: thm:taylor, prop:spectral_to_mse, spikes, correlations, subspaces."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import linalg, stats

import entryclip as ec

SEEDS = st.integers(0, 2**32 - 1)
SIDES = st.integers(1, 9)


def random_matrix(rng, m, n):
    """Gaussian, low-rank or with one spike: noise of every kind the paper speaks of."""
    kind = rng.integers(3)
    x = rng.standard_normal((m, n))
    if kind == 1:
        x = np.outer(x[:, 0], x[0])
    if kind == 2:
        x[rng.integers(m), rng.integers(n)] += 30
    return x


@given(SEEDS, SIDES, SIDES, st.floats(1e-3, 0.249))
def test_thm_taylor(seed, m, n, share):
    """|theta| <= sharper <= 2 ||E||^2 / gap for every k, theta >= 0 for k = 1, up to rounding."""
    rng = np.random.default_rng(seed)
    G, E = random_matrix(rng, m, n), random_matrix(rng, m, n)
    k = int(rng.integers(1, min(m, n) + 1))
    assume(k <= np.linalg.matrix_rank(G))
    gap = ec.diagnostics.expansion(G, E, k).gap
    E *= share * gap / np.linalg.norm(E, 2)
    found = ec.diagnostics.expansion(G, E, k)
    rounding = 1e-13 * np.linalg.norm(G)
    assert found.holds
    assert found.norm == pytest.approx(share * gap)
    assert abs(found.remainder) <= found.sharper + rounding
    assert found.sharper <= found.bound == pytest.approx(2 * found.norm**2 / gap)
    assert found.perturbed == pytest.approx(np.linalg.svd(G + E)[1][k - 1], abs=rounding)
    assert found.perturbed == pytest.approx(found.sigma + found.linear + found.remainder, abs=rounding)
    if k == 1:
        assert found.remainder >= -rounding


def test_thm_taylor_constant_is_sharp():
    """With u_1 coupled to u_2 alone the remainder tends to ||E||^2 / gap: no constant below 1 would do."""
    found = ec.diagnostics.expansion(np.diag([3.0, 1.0]), 1e-3 * np.array([[0.0, 1.0], [1.0, 0.0]]))
    assert float(found.remainder * found.gap / found.norm**2) == pytest.approx(1, abs=1e-5)
    assert float(found.sharper * found.gap / found.norm**2) == pytest.approx(1, abs=1e-3)


def test_expansion_without_its_premise():
    """Beyond gap / 4 `holds` says so, and the bound is still one."""
    rng = np.random.default_rng(0)
    G, E = rng.standard_normal((6, 5)), rng.standard_normal((40, 6, 5)) * np.geomspace(0.01, 10, 40)[:, None, None]
    found = ec.diagnostics.expansion(torch.from_numpy(G), torch.from_numpy(E))
    assert 0 < found.holds.sum() < 40
    np.testing.assert_array_equal(found.holds, found.norm < found.gap / 4)
    assert (np.abs(found.remainder) <= found.sharper + 1e-12).all()
    assert (found.sharper <= found.bound).all()


@given(SEEDS, SIDES, SIDES, st.floats(0.01, 100))
def test_prop_spectral_to_mse(seed, m, n, threshold):
    """|sigma_1(phi(G~)) - sigma_1(G)|^2 <= sum_ij (phi(G~_ij) - G_ij)^2, with no remainder and no gap (Weyl)."""
    rng = np.random.default_rng(seed)
    G, E = random_matrix(rng, m, n), 3 * random_matrix(rng, m, n)
    for phi in (ec.hard_clip, ec.smooth_shrinkage, ec.soft_threshold):
        clipped = phi(G + E, threshold)
        left = (np.linalg.norm(clipped, 2) - np.linalg.norm(G, 2)) ** 2
        assert left <= ((clipped - G) ** 2).sum() * (1 + 1e-12)


@pytest.mark.parametrize("entry", [0.0, 15.0, 25.0, -40.0, 200.0])
def test_spiked_sigma_against_drawn_matrices(entry):
    """At 256 x 384 within 1 % (a fluctuation of sigma_1 is about .3 %); the threshold is 17.7, so 15 does not show."""
    rng = np.random.default_rng(0)
    sigma = []
    for _ in range(5):
        x = torch.from_numpy(rng.standard_normal((256, 384)))
        x[3, 4] = entry
        sigma.append(float(ec.top_singular(x).s[0]))
    assert np.mean(sigma) == pytest.approx(ec.diagnostics.spiked_sigma(entry, 1.0, (256, 384)), rel=0.01)


def test_spiked_sigma_is_continuous_and_homogeneous():
    threshold = ec.diagnostics.detachment(2.0, (100, 300))
    assert threshold == pytest.approx(2 * 30000**0.25)
    below, above = (ec.diagnostics.spiked_sigma(threshold * f, 2.0, (100, 300)) for f in (0.999999, 1.000001))
    assert below == pytest.approx(above, rel=1e-9)
    assert ec.diagnostics.spiked_sigma(1e300, 1e298, (9, 9)) == pytest.approx(
        1e298 * ec.diagnostics.spiked_sigma(100.0, 1.0, (9, 9))
    )


def test_max_entry_correlation_is_scipys():
    E = np.random.default_rng(0).standard_normal((20, 12, 10))
    found = ec.diagnostics.max_entry_correlation(torch.from_numpy(E).float())
    largest, sigma = np.abs(E).max((1, 2)), np.linalg.svd(E)[1][:, 0]
    assert found.rho == pytest.approx(stats.spearmanr(largest, sigma).statistic, abs=1e-6)
    np.testing.assert_allclose(found.largest, largest, rtol=1e-6)
    np.testing.assert_allclose(found.sigma, sigma, rtol=1e-4)


def test_interval_of_the_correlation_has_its_level():
    """Normal pairs with correlation .8, 64 at a time, 2000 times: within 4 standard deviations (2 %) of 95 %."""
    from entryclip.diagnostics.spectrum import _interval

    rng, r = np.random.default_rng(0), 0.8
    true = 6 / math.pi * math.asin(r / 2)  # Spearman's rho of normal pairs
    x = rng.standard_normal((2000, 64))
    y = r * x + math.sqrt(1 - r * r) * rng.standard_normal(x.shape)
    ranks = [stats.rankdata(z, axis=1) - 32.5 for z in (x, y)]
    rho = (ranks[0] * ranks[1]).sum(1) / (ranks[0] ** 2).sum(1)
    inside = [low <= true <= high for low, high in (_interval(each, 64, 0.95) for each in rho)]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)


def test_perfect_order_still_has_an_interval():
    E = np.arange(1.0, 9)[:, None, None] * np.eye(3)
    found = ec.diagnostics.max_entry_correlation(E)
    assert found.rho == 1
    assert 0.8 < found.interval[0] < 1 == found.interval[1]


@pytest.mark.parametrize("k", [1, 3])
def test_recovery_is_scipys_angle(k):
    rng = np.random.default_rng(0)
    G = rng.standard_normal((30, 20))
    estimates = G + 0.2 * rng.standard_normal((2, 2, 30, 20))
    found = ec.diagnostics.recovery(estimates, G, k)
    assert found.left.shape == found.kept_right.shape == (2, 2)
    u, _, vt = np.linalg.svd(G)
    for i in np.ndindex(2, 2):
        a, _, bt = np.linalg.svd(estimates[i])
        left, right = linalg.subspace_angles(u[:, :k], a[:, :k]), linalg.subspace_angles(vt[:k].T, bt[:k].T)
        assert found.left[i] == pytest.approx(np.sin(left).max(), abs=1e-6)
        assert found.right[i] == pytest.approx(np.sin(right).max(), abs=1e-6)
        assert found.kept_left[i] == pytest.approx(np.mean(np.cos(left) ** 2), abs=1e-6)
        assert found.kept_right[i] == pytest.approx(np.mean(np.cos(right) ** 2), abs=1e-6)


def test_recovery_sees_a_spike_and_its_clip():
    """A spike turns the top direction away; smooth shrinkage brings it back."""
    rng = np.random.default_rng(0)
    G = 20 * np.outer(np.ones(60), np.ones(50)) / math.sqrt(3000) + 0.1 * rng.standard_normal((60, 50))
    spiked = G.copy()
    spiked[5, 6] += 100
    assert ec.diagnostics.recovery(spiked, G).kept_left < 0.1
    assert ec.diagnostics.recovery(ec.smooth(0.99)(spiked), G).kept_left > 0.95


G = np.diag([3.0, 2.0, 0.0])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda d: d.expansion(G, np.ones((2, 2))), "E must have matrices of G's shape"),
        (lambda d: d.expansion(G, G, k=3), "k must be at most 2, the rank of G, got 3"),
        (lambda d: d.expansion(np.eye(3), G), "not simple"),
        (lambda d: d.expansion(G, np.full((3, 3), np.nan)), "E has 9 entries that are NaN"),
        (lambda d: d.detachment(-1.0, (3, 3)), "scale must be positive"),
        (lambda d: d.detachment(1.0, (3, 0)), "shape must be"),
        (lambda d: d.spiked_sigma(math.inf, 1.0, (3, 3)), "entry must be finite"),
        (lambda d: d.max_entry_correlation(np.ones((4, 3, 3))), "5 or more matrices, got 4"),
        (lambda d: d.max_entry_correlation(np.ones((6, 3, 3))), "the same for all matrices"),
        (lambda d: d.max_entry_correlation(np.ones((6, 3, 3)), level=2.0), r"level must be in \(0, 1\), got 2"),
        (lambda d: d.recovery(np.zeros((3, 3)), G), "estimate is zero"),
        (lambda d: d.recovery(np.eye(3), G), "singular values 1 and 2 of estimate are equal"),
        (lambda d: d.recovery(G, G, k=4), "k must be from 1 to 3"),
        (lambda d: d.recovery(np.ones((2, 3)), G), "estimate must have matrices"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError, match=words):
        call(ec.diagnostics)
