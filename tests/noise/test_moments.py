"""Mean and variance of a clipped entry against closed forms, scipy's quadrature and draws."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

import entryclip as ec
from entryclip.noise.moments import moments, truncated_squares

LAWS = [ec.noise.Gaussian(0.7), ec.noise.Cauchy(0.3), ec.noise.StudentT(2.5, 2.0), ec.noise.Laplace(0.6)]


@given(st.floats(0.05, 5), st.floats(0.01, 20), st.floats(0.01, 20))
def test_hard_clipping_of_cauchy_noise_in_closed_form(share, tau, gamma):
    """d/dg E C_tau(g + e) = P(|g + e| < tau), integrated; E C_tau(e)^2 by the antiderivative of u^2/(u^2 + gamma^2)."""
    mean, variance = moments(ec.hard_clip, tau, np.array([0.0, share * tau]), ec.noise.Cauchy(gamma))
    cdf = lambda s: np.arctan(s / gamma) / np.pi  # noqa: E731
    slope = lambda s: cdf(tau - s) + cdf(tau + s)  # noqa: E731
    expected, _ = integrate.quad(
        slope, 0, share * tau, epsabs=1e-12 * tau, epsrel=1e-10, points=[min(tau, share * tau)]
    )
    assert mean[0] == 0
    assert mean[1] == pytest.approx(expected, rel=1e-8)
    inner = 2 * gamma / np.pi * (tau - gamma * np.arctan(tau / gamma))
    assert variance[0] == pytest.approx(inner + tau**2 * 2 / np.pi * np.arctan(gamma / tau), rel=1e-8)


@given(st.floats(0, 1), st.floats(0.05, 20), st.floats(0.01, 20))
def test_hard_clipping_of_laplace_noise_in_closed_form(share, tau, scale):
    """The bias is -scale exp(-tau/scale) sinh(g/scale); about g each side has half of E min(e^2, room^2)."""
    g = share * tau
    mean, variance = moments(ec.hard_clip, tau, np.array([g]), ec.noise.Laplace(scale))
    bias = scale / 2 * (np.exp((-tau - g) / scale) - np.exp((g - tau) / scale))
    square = lambda a: 2 * scale**2 * (-np.expm1(-a / scale) - a / scale * np.exp(-a / scale))  # noqa: E731
    assert mean[0] - g == pytest.approx(bias, rel=1e-8, abs=1e-13 * tau)
    assert variance[0] == pytest.approx((square(tau - g) + square(tau + g)) / 2 - bias**2, rel=1e-7)
    rooms = np.array([tau - g, tau + g])
    np.testing.assert_allclose(truncated_squares(rooms, ec.noise.Laplace(scale)), square(rooms), rtol=1e-8, atol=1e-16)


@given(st.floats(0, 10), st.floats(0.1, 20), st.floats(0.05, 0.9), st.booleans())
def test_smooth_shrinkage_of_laplace_noise_in_closed_form(share, c, ratio, wider):
    """Laplace's density is Green's function of 1 - scale^2 d^2/dg^2, so both moments solve a linear equation."""
    scale = c / ratio if wider else c * ratio
    ratio, scale = (ratio * 1.5, scale * 1.5) if abs(scale / c - 0.5) < 0.02 else (ratio, scale)  # where it is singular
    g, k = share * c, 1 / c
    mean, variance = moments(ec.smooth_shrinkage, c, np.array([g]), ec.noise.Laplace(scale))
    decay = np.exp(-g / scale)
    r = 1 - (scale * k) ** 2
    first = g * np.exp(-k * g) / r + 2 * scale**2 * k / r**2 * (decay - np.exp(-k * g))
    K = 2 * k
    r = 1 - (scale * K) ** 2
    linear, constant = -4 * scale**2 * K / r**2, 2 * scale**2 / r**2 + 8 * scale**4 * K**2 / r**3
    second = (g**2 / r + linear * g + constant) * np.exp(-K * g) + scale * (linear - K * constant) * decay
    assert mean[0] == pytest.approx(first, rel=1e-6, abs=1e-9 * c)
    assert variance[0] == pytest.approx(second - first**2, rel=1e-6, abs=1e-8 * c**2)


@given(st.floats(0.05, 3), st.floats(0.1, 1e6), st.floats(0, 1))
def test_tails_that_no_panel_reaches(nu, tau, share):
    """With nu = 0.05, 18 % of all entries lie beyond 10^14 scales: E C_tau(g + e) by the law's own cdf."""
    law, g = ec.noise.StudentT(nu), share * min(tau, 10)
    mean, variance = moments(ec.hard_clip, tau, np.array([g, 0.0]), law)
    expected, _ = integrate.quad(lambda s: 1 - law.cdf(s - tau) - law.cdf(-s - tau), 0, g, epsrel=1e-10)
    assert mean[0] == pytest.approx(expected, rel=1e-7, abs=1e-10 * tau)
    assert variance[1] == pytest.approx(truncated_squares(np.array([tau]), law)[0], rel=1e-9)
    assert variance[1] >= tau**2 * 2 * law.cdf(-tau)


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("operator", [ec.hard_clip, ec.smooth_shrinkage])
def test_by_scipys_quadrature(law, operator):
    for g, threshold in ((0.4, 1.5), (-3.0, 0.2), (1.0, 1.0)):
        mean, variance = moments(operator, threshold, np.array([g]), law)
        first, second = (_expected(law, operator, g, threshold, power) for power in (1, 2))
        assert mean[0] == pytest.approx(first, rel=1e-7)
        assert variance[0] == pytest.approx(second - first**2, rel=1e-6)


def _expected(law, operator, g, threshold, power):
    integrand = lambda u: float(operator(np.array([g + u]), threshold)[0]) ** power * law.density(u)  # noqa: E731
    edges = [-np.inf, *sorted({-threshold - g, -g, threshold - g, 0.0}), np.inf]
    return sum(integrate.quad(integrand, *edge, limit=200, epsabs=1e-11)[0] for edge in pairwise(edges))


def test_by_drawing():
    """A mixture, within 4.5 standard errors of 4 10^6 draws: a false alarm in 10^5 runs."""
    noise = ec.noise.Contamination(0.2, 1.0, ec.noise.Cauchy(3.0))
    e = noise.sample((4 * 10**6,), torch.Generator().manual_seed(0), dtype=torch.float64)
    for operator, threshold in ((ec.hard_clip, 2.0), (ec.smooth_shrinkage, 5.0)):
        mean, variance = moments(operator, threshold, np.array([1.2]), noise)
        draws = operator(1.2 + e, threshold).numpy()
        assert abs(draws.mean() - mean[0]) < 4.5 * np.sqrt(variance[0] / len(draws))
        spread = ((draws - mean[0]) ** 2).std() / np.sqrt(len(draws))
        assert abs(draws.var() - variance[0]) < 4.5 * spread


def test_limits():
    noise = ec.noise.Contamination(0.5, 0.0, ec.noise.Cauchy(1e-9))
    mean, variance = moments(ec.hard_clip, 1.0, np.array([0.3, 7.0]), noise)
    np.testing.assert_allclose(mean, [0.3, 1.0], rtol=1e-7)
    assert variance.max() < 1e-8
    with pytest.raises(ValueError, match="NaN or infinite"):
        moments(ec.hard_clip, 1.0, np.array([np.nan]), noise)


def test_weak_noise_loses_no_digits():
    _, variance = moments(ec.smooth_shrinkage, 5.0, np.array([0.0]), ec.noise.Gaussian(1e-9))
    assert variance[0] == pytest.approx(1e-18, rel=1e-8)
