"""The lemmas about one entry, by the paper's labels, over random parameters: each inequality against exact values."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import BULK, FACTOR
from scipy import integrate, stats

import entryclip as ec
from entryclip.noise.moments import moments
from entryclip.theory import entry

ALPHA, GAMMA, BOUND = st.one_of(st.just(0.0), st.floats(1e-12, 1)), st.floats(0.01, 10), st.floats(0.01, 10)
SIGMA = st.one_of(st.just(0.0), st.floats(1e-3, 10))
ROUND = 1 + 1e-9


def mixture(alpha, sigma, gamma):
    return ec.noise.Contamination(alpha, sigma, ec.noise.Cauchy(gamma))


def smooth_slope(x, c):
    """S_c'(x)."""
    return np.exp(-np.abs(x) / c) * (1 - np.abs(x) / c)


@given(st.floats(0, 50), st.floats(0.01, 10), GAMMA)
def test_scalar_tails(t, sigma, gamma):
    """lem:scalar-tails-app: eq:gauss-tail-app, eq:cauchy-tail-app and both truncated moments."""
    assert 2 * stats.norm.sf(t / sigma) <= 2 * math.exp(-(t**2) / (2 * sigma**2))
    a = t + 1e-3
    tail = stats.cauchy.sf(a / gamma)
    assert tail == pytest.approx(math.atan(gamma / a) / math.pi, rel=1e-9)
    assert tail <= gamma / (math.pi * a) * ROUND
    _, truncated = moments(ec.hard_clip, a, np.array([0.0]), ec.noise.Cauchy(gamma))  # E min(H^2, a^2)
    assert truncated[0] <= 4 * gamma * a / math.pi * ROUND
    one_sided, _ = integrate.quad(lambda h: h * h * gamma / (math.pi * (gamma**2 + h**2)), 0, a)
    assert one_sided + a**2 * tail <= 2 * gamma * a / math.pi * ROUND


@given(st.floats(0, 1e6), st.floats(1, 1e6), st.floats(1, 100))
def test_log_device(a, s, times):
    """lem:log-device-app."""
    x = times * 2 * s * a * math.log(math.e + 2 * s * a)
    if x > 0:
        assert a * math.log(math.e + x) / x <= 1 / s * ROUND


@given(ALPHA, SIGMA, GAMMA, BOUND, st.floats(1.001, 100), st.floats(0.1, 1), BULK, FACTOR)
def test_hard_bias_and_variance(alpha, sigma, gamma, bound, times, share, bulk, heavy):
    """lem:hard-relative-bias-app and lem:hard-variance-app, for any sigma_0 <= sigma and gamma_0 <= gamma."""
    tau, noise, actual = bound * times, mixture(alpha, sigma, gamma), mixture(alpha, bulk * sigma, heavy * gamma)
    g = np.array([share * bound, bound])
    mean, variance = moments(ec.hard_clip, tau, g, actual)
    assert (np.abs(mean - g) <= (entry.rho_hard(tau, noise, bound) * ROUND + 1e-13) * g).all()
    assert (variance <= entry.variance_hard(tau, noise) * ROUND).all()


@given(ALPHA, SIGMA, GAMMA, BOUND, st.floats(0.1, 100), st.floats(0.1, 1), BULK, FACTOR)
def test_smooth_bias_and_variance(alpha, sigma, gamma, bound, times, share, bulk, heavy):
    """lem:smooth-relative-bias-app and lem:smooth-variance-app, for any sigma_0 <= sigma and gamma_0 <= gamma."""
    c, noise, actual = bound * times, mixture(alpha, sigma, gamma), mixture(alpha, bulk * sigma, heavy * gamma)
    g = np.array([share * bound, bound])
    mean, variance = moments(ec.smooth_shrinkage, c, g, actual)
    assert (np.abs(mean - g) <= entry.rho_smooth(c, noise, bound) * g * ROUND).all()
    assert (variance <= entry.variance_smooth(c, noise) * ROUND).all()


@given(st.floats(-100, 100), st.floats(-100, 100), st.floats(0.01, 50))
def test_smooth_properties(x, y, c):
    """lem:smooth-properties-app: odd, 1-Lipschitz, at most c/e, and a 2/c-Lipschitz derivative."""
    a, b = ec.smooth_shrinkage(np.array([x, y]), c)
    assert ec.smooth_shrinkage(np.array([-x]), c)[0] == -a
    assert abs(a - b) <= abs(x - y) * ROUND + 1e-12
    assert abs(a) <= c / math.e * ROUND
    assert abs(smooth_slope(x, c) - smooth_slope(y, c)) <= 2 / c * abs(x - y) * ROUND + 1e-12
    step = 1e-6 * c
    slope = np.diff(ec.smooth_shrinkage(np.array([x - step, x + step]), c))[0] / (2 * step)
    assert slope == pytest.approx(smooth_slope(x, c), abs=1e-5)


@given(SIGMA, GAMMA, st.floats(0.05, 100))
def test_smooth_derivative_deficits(sigma, gamma, c):
    """lem:smooth-derivative-deficits-app: E S_c' is the slope of E S_c(g + e) at g = 0."""
    g = np.array([1e-4 * c])
    if sigma > 0:
        mean, _ = moments(ec.smooth_shrinkage, c, g, ec.noise.Gaussian(sigma))
        assert 1 - mean[0] / g[0] <= math.sqrt(8 / math.pi) * sigma / c + 2e-4
        exact, _ = integrate.quad(lambda z: smooth_slope(sigma * z, c) * stats.norm.pdf(z), 0, 40, points=[c / sigma])
        assert 1 - 2 * exact <= math.sqrt(8 / math.pi) * sigma / c * ROUND + 1e-9
    u = math.tan(math.pi / 2 * 0.999999)
    exact, _ = integrate.quad(
        lambda v: 2 / math.pi * smooth_slope(gamma * math.tan(v), c), 0, math.atan(u), limit=200, epsabs=1e-10
    )
    assert 1 - exact <= 8 * gamma / (math.pi * c) * math.log(math.e + c / gamma) + 1e-6


@given(ALPHA, SIGMA, GAMMA, st.floats(0, 10), st.integers(1, 10**4), st.floats(1, 100))
def test_thresholds(alpha, sigma, gamma, bound, r, times):
    """lem:post-thresholds-app (rho <= 1/2) and lem:pre-thresholds-app (rho <= 1/(4 sqrt r)), at and above them."""
    noise = mixture(alpha, sigma, gamma)
    root = math.sqrt(r)
    for slack, hard, smooth in (
        (
            1 / 2,
            bound + max(sigma * math.sqrt(2 * math.log(8)), 8 * alpha * gamma / math.pi),
            max(
                4 * (bound + math.sqrt(8 / math.pi) * (1 - alpha) * sigma),
                64 * alpha * gamma / math.pi * math.log(math.e + 64 * alpha / math.pi),
            ),
        ),
        (
            1 / (4 * root),
            bound + max(sigma * math.sqrt(2 * math.log(16 * root)), 16 * alpha * gamma * root / math.pi),
            max(
                8 * root * (bound + math.sqrt(8 / math.pi) * (1 - alpha) * sigma),
                128 * alpha * gamma * root / math.pi * math.log(math.e + 128 * alpha * root / math.pi),
            ),
        ),
    ):
        tau, c = (f(noise, bound, slack) for f in (entry.threshold_hard, entry.threshold_smooth))
        assert (tau, c) == pytest.approx((hard, smooth))  # as the theorems write them
        if tau > bound:
            assert entry.rho_hard(bound + times * (tau - bound), noise, bound) <= slack * ROUND
        if c > 0:
            assert entry.rho_smooth(times * c, noise, bound) <= slack * ROUND


@given(ALPHA, st.floats(0.01, 5), GAMMA, st.floats(0.01, 5), st.sampled_from(["hard", "smooth"]))
def test_exact_is_below_the_bounds_and_near_them_where_they_are_sharp(alpha, sigma, gamma, bound, operator):
    noise = mixture(alpha, sigma, gamma)
    bounds = entry.OPERATOR_BOUNDS[operator]
    threshold = bounds.threshold(noise, bound, 0.5)
    rho, variance = entry.exact(operator, threshold, noise, bound)
    assert 0 <= rho <= bounds.rho(threshold, noise, bound) * ROUND
    assert 0 <= variance <= bounds.variance(threshold, noise) * ROUND


def test_exact_values_of_hard_clipping_in_closed_form():
    """At B = 0 the relative bias is P(|e| >= tau); a variance without heavy part and threshold is sigma^2."""
    noise = mixture(0.1, 1.0, 2.0)
    rho, _ = entry.exact("hard", 3.0, noise, bound=0.0)
    assert rho == pytest.approx(0.9 * 2 * stats.norm.sf(3) + 0.1 * 2 * stats.cauchy.sf(1.5), rel=1e-5)
    _, variance = entry.exact("hard", 60.0, ec.noise.Gaussian(1.5), bound=1.0)
    assert variance == pytest.approx(2.25, rel=1e-9)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: entry.rho_hard(1.0, mixture(0.1, 1, 1), 1.0), "needs a threshold above the bound 1"),
        (lambda: entry.rho_smooth(-1.0, mixture(0.1, 1, 1), 1.0), "threshold must be a finite number above 0"),
        (lambda: entry.rho_smooth(1.0, mixture(0.1, 1, 1), -2.0), "bound must be a finite number >= 0, got -2.0"),
        (lambda: entry.exact("median", 1.0, mixture(0.1, 1, 1), 1.0), "one of hard, smooth, got 'median'"),
        (lambda: entry.variance_hard(1.0, ec.noise.StudentT(2.0)), r"alpha Cauchy\(gamma\) only"),
        (
            lambda: entry.threshold_hard(ec.noise.Contamination(0.1, 1.0, ec.noise.StudentT(2.0)), 1.0, 0.5),
            "the paper's closed forms cover",
        ),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError, match=words):
        call()
