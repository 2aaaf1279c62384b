"""The Bayes estimator against quadrature that shares nothing with it (`quadrature.py`)."""

import itertools
import math
import sys
import time
from functools import cache
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import wofz

import entryclip as ec
from entryclip.noise.bayes import branches, log_marginal, wiener_coefficient
from entryclip.noise.heavy import _table, heavy_branch

sys.path.insert(0, str(Path(__file__).parent))
from quadrature import heavy_reference, legendre

Y = np.concatenate([np.logspace(-6, 12, 37), np.linspace(3, 60, 20)])
MIXTURE = ec.noise.Contamination(0.05, 1.0, ec.noise.Cauchy(1.0))


def law(nu, scale):
    return ec.noise.Cauchy(scale) if nu == 1 else ec.noise.StudentT(nu, scale)


@cache
def reference(y, nu, scale):
    return heavy_reference(y, nu, scale, law(nu, scale).log_density)


def mixture_reference(y, alpha, sigma, nu, scale):
    """Posterior mean and retention, by the reference for the heavy branch and Bayes' rule in plain numbers."""
    log_f, mean = reference(y, nu, scale)
    spread = 1 + sigma**2
    log_n = -(y**2) / (2 * spread) - 0.5 * math.log(2 * math.pi * spread)
    top = log_n if alpha == 0 else log_f if alpha == 1 else max(log_f, log_n)
    n = (1 - alpha) * math.exp(log_n - top) if alpha < 1 else 0.0
    f = alpha * math.exp(log_f - top) if alpha > 0 else 0.0
    return (n * y / spread + f * mean) / (n + f), n / (n + f)


@pytest.mark.parametrize("nu", [0.3, 1, 1.5, 2, 3, 4.5, 10, 30, 100])
@pytest.mark.parametrize("scale", [1e-4, 0.1, 1.0, 30.0, 1e4])
def test_heavy_branch_by_quadrature(nu, scale):
    log_f, mean = heavy_branch(Y, law(nu, scale))
    expected = np.array([reference(y, nu, scale) for y in Y])
    np.testing.assert_allclose(log_f, expected[:, 0], rtol=0, atol=2e-11)
    np.testing.assert_allclose(mean, expected[:, 1], rtol=2e-12)


@pytest.mark.parametrize("alpha", [0.0, 1e-6, 0.05, 0.5, 1.0])
@pytest.mark.parametrize(("nu", "scale"), [(1, 1e-4), (1, 1.0), (1, 1e4), (3, 1e-4), (3, 1.0), (3, 1e4), (2.2, 1.0)])
def test_posterior_mean_to_1e_9(alpha, nu, scale):
    """The whole range that is promised, at four scales of sigma and in units that are not 1."""
    unit = 0.37
    for sigma in (0.0, 0.01, 1.0, 100.0):
        noise = ec.noise.Contamination(alpha, sigma * unit, law(nu, scale * unit))
        expected = np.array([mixture_reference(y, alpha, sigma, nu, scale) for y in Y])
        np.testing.assert_allclose(ec.noise.posterior_mean(-Y * unit, unit, noise), -expected[:, 0] * unit, rtol=1e-9)
        kept = ec.noise.retention(Y * unit, unit, noise)
        np.testing.assert_allclose(kept, expected[:, 1], rtol=1e-9, atol=1e-290)


def test_the_corner_where_the_series_alone_is_wrong():
    noise = ec.noise.Contamination(0.05, 1.0, ec.noise.Cauchy(1.0))
    x, weight = legendre(np.linspace(-2, 2, 200))
    terms = weight * np.exp(-x * x / 0.02) * noise.density(3.5 - x)
    truth = (terms * x).sum() / terms.sum()
    assert truth == pytest.approx(0.01766, abs=1e-5)
    assert ec.noise.posterior_mean(3.5, 0.1, noise) == pytest.approx(truth, rel=1e-9)


def test_the_table_agrees_with_faddeevas_function():
    """nu = 1 by the table, and t_3 by its closed form F - g dF/dg, where that does not cancel: g >= y/10."""
    y = np.linspace(0.01, 12, 300)
    for a, b in zip(_table(1.0, 0.7).at(y), heavy_branch(y, ec.noise.Cauchy(0.7)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11)
    scale = 0.8
    g = math.sqrt(3) * scale
    y = y[y < 10 * g]
    z = (y + 1j * g) / math.sqrt(2)
    w = wofz(z)
    slope = -2 * z * w + 2j / math.sqrt(math.pi)
    f = (w - g * slope * 1j / math.sqrt(2)).real / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(heavy_branch(y, ec.noise.StudentT(3.0, scale))[0], np.log(f), atol=1e-10)


def test_why_t3_is_not_computed_by_its_closed_form():
    """At a small scale F - g dF/dg has three digits left, where the table still has eleven."""
    y, scale = 10.0, 1e-4
    g = math.sqrt(3) * scale
    z = (y + 1j * g) / math.sqrt(2)
    w = wofz(z)
    f = (w - g * (-2 * z * w + 2j / math.sqrt(math.pi)) * 1j / math.sqrt(2)).real / math.sqrt(2 * math.pi)
    truth = reference(y, 3, scale)[0]
    assert abs(f / math.exp(truth) - 1) > 1e-4
    assert heavy_branch(np.array([y]), ec.noise.StudentT(3.0, scale))[0][0] == pytest.approx(truth, abs=1e-11)


@given(
    st.floats(-20, 20),
    st.floats(0, 1),
    st.floats(0, 10),
    st.floats(0.5, 20),
    st.floats(0.01, 100),
    st.floats(0.1, 10),
)
def test_laws_of_the_posterior_mean(y, alpha, sigma, nu, scale, sigma_x):
    """Odd, of y's sign, between 0 and y, homogeneous, and the sum of its branches (prop:mixture)."""
    noise = ec.noise.Contamination(alpha, sigma, ec.noise.StudentT(nu, scale))
    mean = float(ec.noise.posterior_mean(y, sigma_x, noise))
    assert float(ec.noise.posterior_mean(-y, sigma_x, noise)) == -mean
    assert 0 <= mean * math.copysign(1, y) <= abs(y) * (1 + 1e-12)
    doubled = ec.noise.Contamination(alpha, 2 * sigma, ec.noise.StudentT(nu, 2 * scale))
    assert float(ec.noise.posterior_mean(2 * y, 2 * sigma_x, doubled)) == pytest.approx(2 * mean, rel=1e-12)
    gaussian, heavy = branches(y, sigma_x, noise)
    assert float(gaussian + heavy) == mean
    beta = wiener_coefficient(sigma_x, sigma)
    assert float(gaussian) == pytest.approx(float(ec.noise.retention(y, sigma_x, noise)) * beta * y, rel=1e-12)


def test_gaussian_noise_is_the_wiener_filter():
    y = torch.linspace(-50, 50, 11, dtype=torch.float64)
    torch.testing.assert_close(ec.noise.posterior_mean(y, 2.0, ec.noise.Gaussian(1.0)), 0.8 * y)
    assert wiener_coefficient(2.0, 1.0) == 0.8
    assert ec.noise.posterior_mean(3.0, 2.0, ec.noise.Contamination(0.0, 1.0, ec.noise.Cauchy(5.0))) == 0.8 * 3


def test_the_paper_drops_the_larger_branch_far_out():
    """rho(y) is about 2 sigma_x^2 / y for Cauchy noise, while pi(y) beta y falls like a Gaussian density (thm:main)."""
    for y in (10.0, 30.0):
        gaussian, heavy = branches(y, 1.0, MIXTURE)
        assert float(gaussian) < 1e-5 * float(heavy)
        assert float(heavy) == pytest.approx(2 / y, rel=0.05)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_marginal_density_integrates_to_one_and_gives_tweedies_formula(alpha):
    """eq:tweedie: E[x | y] = -sigma_x^2 d/dy log p(y) - here for the whole mixture, as in prop:spectral_to_mse."""
    noise = ec.noise.Contamination(alpha, 0.5, ec.noise.StudentT(2.0, 1.5))
    u, weight = legendre(np.concatenate([[0], np.geomspace(1e-3, 1e9, 400)]))
    assert 2 * (weight * np.exp(log_marginal(u, 0.7, noise))).sum() == pytest.approx(1, abs=1e-12)
    y = np.linspace(-5, 5, 11)
    score = (log_marginal(y + 1e-4, 0.7, noise) - log_marginal(y - 1e-4, 0.7, noise)) / 2e-4
    heavy = ec.noise.posterior_mean(y, 0.7, noise)
    np.testing.assert_allclose(-(0.7**2) * score, heavy, atol=1e-6)


def test_libraries_dtypes_and_shapes():
    y = np.random.default_rng(0).standard_cauchy((3, 4, 5))
    expected = ec.noise.posterior_mean(y, 1.0, MIXTURE)
    assert isinstance(expected, np.ndarray)
    assert expected.dtype == np.float64
    for dtype, tolerance in ((torch.float64, 1e-15), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)):
        found = ec.noise.posterior_mean(torch.from_numpy(y).to(dtype).requires_grad_(), 1.0, MIXTURE)
        assert found.dtype == dtype
        np.testing.assert_allclose(found.double().numpy(), expected, rtol=tolerance, atol=tolerance)
    assert ec.noise.posterior_mean(y.astype(np.float32), 1.0, MIXTURE).dtype == np.float32
    traced = ec.noise.posterior_mean(jnp.asarray(y, dtype=jnp.float32), 1.0, MIXTURE)
    assert traced.dtype == jnp.float32
    np.testing.assert_allclose(traced, expected, rtol=1e-5)
    assert ec.noise.posterior_mean(np.array([]), 1.0, MIXTURE).shape == (0,)


@pytest.mark.parametrize("heavy", [ec.noise.Cauchy(2.0), ec.noise.StudentT(2.5, 3.0)])
def test_limits(heavy):
    """At 0 it is 0; where y^2 is no longer a number, the power law still holds."""
    noise = ec.noise.Contamination(0.3, 1.0, heavy)
    assert float(ec.noise.posterior_mean(0.0, 1.0, noise)) == 0
    assert float(ec.noise.posterior_mean(1e-300, 1.0, noise)) > 0
    for y in (1e100, 1e250):
        assert float(ec.noise.posterior_mean(y, 1.0, noise)) * y == pytest.approx(heavy.tail_index + 1, rel=1e-12)
        assert float(ec.noise.retention(y, 1.0, noise)) == 0


EVERY_SIZE = np.concatenate([[0.0, 5e-324, 1e-310], np.logspace(-300, 300, 61), [1e307, 1.7e308]])


@pytest.mark.parametrize("sigma_x", [1e-300, 1e-30, 1.0, 1e30, 1e300])
@pytest.mark.parametrize("nu", [0.01, 1, 3, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_no_input_gives_nan(nu, sigma_x):
    """Everywhere in the range of floating-point numbers a value between 0 and y, and a probability."""
    for scale, alpha, sigma in itertools.product(
        (1e-19, 1e-4, 1.0, 1e4, 1e19), (0.0, 1e-9, 0.5, 1.0), (0.0, 1.0, 1e200)
    ):
        if not (0 < scale * sigma_x < math.inf and sigma * sigma_x < math.inf):
            continue
        noise = ec.noise.Contamination(alpha, sigma * sigma_x, law(nu, scale * sigma_x))
        mean, kept = ec.noise.posterior_mean(EVERY_SIZE, sigma_x, noise), ec.noise.retention(EVERY_SIZE, sigma_x, noise)
        assert ((mean >= 0) & (mean <= EVERY_SIZE * (1 + 1e-9) + 1e-323)).all()
        assert ((kept >= 0) & (kept <= 1)).all()
        assert not np.isnan(log_marginal(EVERY_SIZE, sigma_x, noise)).any()


@pytest.mark.parametrize("nu", [1, 2.5])
def test_far_out_and_close_by(nu):
    """Where y / sigma_x overflows or underflows, the power law and the slope at 0 still hold."""
    for sigma_x, y in ((1e-200, 1e-100), (1e-200, 1e200), (1e-100, 1e250), (1e-5, 1e290)):
        heavy = law(nu, 3 * sigma_x)
        mean = ec.noise.posterior_mean(y, sigma_x, ec.noise.Contamination(0.3, sigma_x, heavy))
        assert float(mean) == pytest.approx((nu + 1) * sigma_x * (sigma_x / y), rel=1e-9, abs=1e-320)
        expected = (nu + 1) * (math.log(y) - math.log(sigma_x))
        near = log_marginal(sigma_x * 1e40, sigma_x, heavy) + (nu + 1) * 40 * math.log(10)
        assert float(log_marginal(y, sigma_x, heavy)) + expected == pytest.approx(float(near), abs=1e-9)
    for gamma in (50.0, 1e4, 1e15):
        slope = 1e-3 / ec.noise.posterior_mean(1e-3, 1.0, law(nu, gamma))
        for y in (1e-10, 1e-200, 1e-270):
            assert y / ec.noise.posterior_mean(y, 1.0, law(nu, gamma)) == pytest.approx(slope, rel=1e-6)
    assert ec.noise.posterior_mean(1e300, 1.0, ec.noise.Gaussian(1e200)) == pytest.approx(1e-100)


@pytest.mark.parametrize("heavy", [ec.noise.Cauchy(1.0), ec.noise.StudentT(3.0), ec.noise.StudentT(63.7, 1e-3)])
def test_a_million_entries_in_a_second(heavy):
    y = torch.from_numpy(np.random.default_rng(0).standard_cauchy(10**6))
    noise = ec.noise.Contamination(0.05, 1.0, heavy)
    seconds = []
    for _ in range(2):
        _table.cache_clear()
        start = time.process_time()
        ec.noise.posterior_mean(y, 1.0, noise)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ec.noise.posterior_mean(1.0, 0.0, MIXTURE), "sigma_x must be a finite number above 0, got 0.0"),
        (lambda: ec.noise.posterior_mean([1.0, math.nan], 1.0, MIXTURE), "1 entries that are NaN or infinite"),
        (lambda: ec.noise.retention(math.inf, 1.0, MIXTURE), "NaN or infinite"),
        (lambda: ec.noise.posterior_mean(1.0, 1.0, ec.noise.Subspace()), "Gaussian, Cauchy, StudentT and Contam"),
        (lambda: ec.noise.posterior_mean(1.0, 1.0, ec.noise.StudentT(500.0)), "nu must be at most 200 here, got 500"),
        (lambda: ec.noise.posterior_mean(1.0, 1e-200, MIXTURE), "must be from 1e-20 to 1e20, got 1e"),
        (lambda: ec.noise.posterior_mean(torch.arange(3), 1.0, MIXTURE), "must be one of float64"),
        (lambda: wiener_coefficient(-1.0, 1.0), "sigma_x must be"),
        (
            lambda: ec.noise.posterior_mean(1.0, 1.0, ec.noise.Contamination(0.1, 1.0, ec.noise.Laplace())),
            "Contamination by Cauchy or StudentT, got Contamination",
        ),
    ],
)
def test_bad_input(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()
