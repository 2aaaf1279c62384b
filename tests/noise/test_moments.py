"""Mean and variance of a clipped entry against closed forms, scipy's quadrature and draws."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

import entryclip as ec
from entryclip.noise.moments import moments

LAWS = [ec.noise.Gaussian(0.7), ec.noise.Cauchy(0.3), ec.noise.StudentT(2.5, 2.0)]


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
