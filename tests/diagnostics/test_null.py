"""The law of R under Gaussian noise: calibrated wherever it is used."""

import numpy as np
import pytest
from scipy import stats

from entryclip.diagnostics.null import ClosedForm, MonteCarlo, closed_form, gaussian_null, monte_carlo, participation

RNG = np.random.default_rng(0)


def unit(x):
    return np.asarray(x, float) / np.linalg.norm(x)


def haar(m):
    return unit(RNG.standard_normal(m))


def one_large(m, share):
    """A vector with one entry far larger than the others."""
    x = RNG.standard_normal(m) * 0.3 / np.sqrt(m)
    x[m // 2] = share
    return unit(x)


# u, v, and the law that should be chosen
CASES = {
    "flat 24x40": (np.ones(24) / 24**0.5, np.ones(40) / 40**0.5, ClosedForm),
    "haar 32x32": (haar(32), haar(32), ClosedForm),
    "haar 8x8": (haar(8), haar(8), ClosedForm),
    "haar 4x200": (haar(4), haar(200), ClosedForm),
    "one row": (np.array([1.0]), haar(60), ClosedForm),
    "u localized": (one_large(48, 1.0), haar(48), ClosedForm),
    "both localized": (one_large(30, 1.0), one_large(40, 0.8), MonteCarlo),
    "two entries": (unit([1.0, -1.0, 0.0]), np.array([0.0, 1.0]), MonteCarlo),
    "haar 2x3": (haar(2), haar(3), MonteCarlo),
}


def ratios(u, v, draws, seed=1):
    """R of Gaussian matrices, drawn whole."""
    rng = np.random.default_rng(seed)
    terms = np.outer(u, v).ravel() * rng.standard_normal((draws, u.size * v.size))
    return (np.abs(terms).max(-1) / terms.sum(-1)) ** 2


@pytest.mark.parametrize("name", CASES)
def test_p_values_are_uniform(name):
    """KS test at 10^4 draws. By chance one of these nine fails in 300 choices of seeds (level 3e-4 each)."""
    u, v, kind = CASES[name]
    null = gaussian_null(u, v)
    assert type(null) is kind
    drawn = ratios(u, v, 10_000)
    assert stats.kstest(null.above(drawn), "uniform").pvalue > 3e-4
    np.testing.assert_allclose(null.above(drawn) + null.below(drawn), 1, atol=2e-4)


def test_dependence_of_largest_term_and_sum_matters():
    """Taking them as independent, as one might, is rejected where few entries matter; the closed form is not."""
    u, v = np.ones(3) / 3**0.5, np.ones(3) / 3**0.5
    drawn, null = ratios(u, v, 6000), closed_form(u, v)
    independent = np.array([np.mean(2 * stats.norm.cdf(null.largest / r**0.5) - 1) for r in drawn])
    assert stats.kstest(independent, "uniform").pvalue < 1e-4
    assert stats.kstest(null.above(drawn), "uniform").pvalue > 1e-3


def test_tail_of_the_null():
    """R-hat > 10 in 17 % and > 100 in 5 % of all Gaussian matrices: a single large R-hat says nothing."""
    null = closed_form(haar(300), haar(200))
    assert null.above(10 * null.median) == pytest.approx(0.17, abs=0.005)
    assert null.above(100 * null.median) == pytest.approx(0.054, abs=0.002)
    assert null.above(1e30) == pytest.approx(null.above(1e26) / 100, rel=1e-6)  # as 1/sqrt, with no cancellation
    assert null.above(1e14) == pytest.approx(null.above(1e4) / 1e5, rel=1e-2)  # two ways to compute it meet
    assert 0 < null.below(null.median / 300) < 1e-9
    np.testing.assert_array_equal(null.above(np.array([0.0, np.inf])), [1, 0])


@pytest.mark.parametrize("draws", [1, 2, 5, 16, 64])
@pytest.mark.parametrize("name", ["haar 8x8", "two entries"])
def test_bands_of_medians_have_their_level(name, draws):
    """4000 medians: the share outside each end is within 4 standard deviations of 2.5 %, one run in 800 is not.

    A law made of 200 000 draws adds an error of its own: .5 / sqrt(200 000) in probability.
    """
    u, v, _ = CASES[name]
    null = gaussian_null(u, v)
    medians = np.median(ratios(u, v, 4000 * draws, seed=2).reshape(4000, draws), axis=1)
    low, high = np.array(null.band(draws)) * null.median
    own = stats.norm.pdf(1.96) * (draws / 200_000) ** 0.5 if isinstance(null, MonteCarlo) else 0.0
    for outside in (np.mean(medians < low), np.mean(medians > high)):
        assert outside == pytest.approx(0.025, abs=4 * np.hypot((0.025 * 0.975 / 4000) ** 0.5, own))
    assert null.median_below(low, draws) == pytest.approx(0.025, abs=1e-3)
    assert null.median_below(high, draws) == pytest.approx(0.975, abs=1e-3)


def test_bands_known_from_elsewhere():
    """An independent simulation gave 0.59 to 1.83 for 64 draws; for Haar u, v of 16 and 64 draws they hardly differ."""
    assert closed_form(haar(256), haar(384)).band(64) == pytest.approx((0.59, 1.85), abs=0.02)


def test_monte_carlo_leaves_out_what_cannot_matter():
    """With 10^4 weights, of which 4096 are drawn, as with all of them: two-sample KS, level 1e-3."""
    u, v = one_large(100, 1.0), one_large(100, 1.0)
    short = monte_carlo(u, v, 5000, np.random.default_rng(3))
    assert stats.ks_2samp(short.ratios, ratios(u, v, 5000)).pvalue > 1e-3


def test_one_entry_alone():
    null = gaussian_null(np.eye(3)[1], np.eye(4)[2])
    assert null.median == null.quantile(0.1) == 1
    assert null.above(1.0) == null.below(1.0) == 1
    assert null.band(64) == (1, 1)


def test_zeros_in_the_directions_do_not_count():
    u, v = haar(12), haar(12)
    padded = closed_form(np.append(u, np.zeros(5)), v)
    assert padded.median == pytest.approx(closed_form(u, v).median, rel=1e-12)
    assert participation(np.append(u, 0.0)) == pytest.approx(participation(u))


@pytest.mark.parametrize("wrong", [{"draws": 0}, {"level": 1.0}, {"level": 0.0}])
def test_bad_input(wrong):
    with pytest.raises(ValueError, match="must be"):
        closed_form(np.ones(9) / 3, np.ones(9) / 3).band(**wrong)
