"""lem:posterior_collapse, lem:tail_envelope and thm:main (i) over random parameters."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import entryclip as ec
from entryclip.noise.bayes import branches
from entryclip.noise.collapse import tail_constants

NU, SCALE, SIGMA_X = st.floats(0.2, 20), st.floats(0.01, 100), st.floats(0.05, 20)
TIMES = np.geomspace(1, 1e6, 60)  # how far beyond y_1


@given(NU, SCALE)
def test_score_and_curvature_conditions(nu, scale):
    """eq:score_curvature, by finite differences of the log density."""
    heavy = ec.noise.StudentT(nu, scale)
    c1, c2, t0 = tail_constants(heavy)
    t = t0 * np.geomspace(1, 1e4, 100)
    step = 1e-3 * t
    up, here, down = heavy.log_density(t + step), heavy.log_density(t), heavy.log_density(t - step)
    assert (np.abs(up - down) / (2 * step) <= c1 / t * (1 + 1e-5)).all()
    assert (np.abs(up - 2 * here + down) / step**2 <= c2 / t**2 * (1 + 1e-5)).all()


@given(NU, SCALE)
def test_tail_envelope(nu, scale):
    """lem:tail_envelope."""
    heavy = ec.noise.StudentT(nu, scale)
    c1, _, t0 = tail_constants(heavy)
    t = t0 * np.geomspace(1, 1e8, 100)
    change = heavy.log_density(t) - heavy.log_density(t0)
    assert (np.abs(change) <= c1 * np.log(t / t0) + 1e-12).all()


@given(SIGMA_X, NU, SCALE, st.booleans())
def test_posterior_collapse(sigma_x, nu, scale, equivariant):
    """lem:posterior_collapse: |E[x | y, H]| <= 3 C1 sigma_x^2 / |y| from y_1 on."""
    heavy = ec.noise.StudentT(nu, scale)
    found = ec.noise.posterior_collapse(sigma_x, heavy, equivariant=equivariant)
    y = found.y1 * TIMES
    assert found.y_star is None
    assert found.constant == pytest.approx(3 * (nu + 1) * sigma_x**2)
    assert (np.abs(ec.noise.posterior_mean(y, sigma_x, heavy)) <= found.constant / y * (1 + 1e-9)).all()


@given(SIGMA_X, NU, SCALE, st.floats(0.01, 0.99), st.floats(0.1, 10), st.floats(1e-4, 1.0))
def test_the_remainder_of_the_theorem(sigma_x, nu, scale, alpha, sigma, epsilon):
    """thm:main (i): |rho(y)| <= epsilon from y* on, whatever alpha and sigma."""
    heavy = ec.noise.StudentT(nu, scale)
    y_star = ec.noise.posterior_collapse(sigma_x, heavy, epsilon, equivariant=True).y_star
    rest = branches(y_star * TIMES, sigma_x, ec.noise.Contamination(alpha, sigma, heavy)).heavy
    assert (np.abs(rest) <= epsilon * (1 + 1e-9)).all()


def test_the_papers_form_does_not_scale_with_the_data_and_the_other_does():
    ratios = [ec.noise.posterior_collapse(s, ec.noise.Cauchy(s)).y1 / s for s in (1.0, 1e-2, 1e-3)]
    assert ratios == pytest.approx([11.6, 201, 2004], rel=5e-3)
    for s in (1.0, 1e-2, 1e-3, 1e5):
        assert ec.noise.posterior_collapse(s, ec.noise.Cauchy(s), equivariant=True).y1 / s == pytest.approx(ratios[0])


def test_y1_is_the_smallest():
    """M R(y) <= C1/y holds from y_1 on and just below it does not."""
    sigma_x, gamma = 1.3, 0.4

    def bound(y):  # M R(y) y / C1 for Cauchy noise, the paper's form, written out
        density = lambda u: gamma / (math.pi * (u * u + gamma**2))  # noqa: E731
        k1 = max(density(0), density(gamma) * (2 * y / gamma) ** 2)
        r = y / 2 * k1 / density(gamma) * ((y + 1) / gamma) ** 2
        return 4 / gamma * r * math.exp(-(y**2) / (8 * sigma_x**2) + 1 / (2 * sigma_x**2)) * y / 2

    y1 = ec.noise.posterior_collapse(sigma_x, ec.noise.Cauchy(gamma)).y1
    assert bound(y1 * 1.0001) < 1 < bound(y1 * 0.9999)
    assert all(bound(y) <= 1 for y in y1 * 1.0001 * TIMES[:20])


def test_y1_is_at_least_t0_and_one():
    """With a tiny prior the bound holds at once; the envelopes it uses do not."""
    found = ec.noise.posterior_collapse(0.5, ec.noise.Cauchy(1000.0))
    assert found.y1 == 2000.0
    assert ec.noise.posterior_collapse(1.0, ec.noise.Cauchy(1.0), 1e-3).y_star == pytest.approx(6000)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ec.noise.posterior_collapse(0.0, ec.noise.Cauchy()), "sigma_x must be"),
        (lambda: ec.noise.posterior_collapse(1.0, ec.noise.Cauchy(), -1.0), "epsilon must be a finite number above 0"),
        (lambda: ec.noise.posterior_collapse(1.0, ec.noise.Gaussian()), "a Gaussian score grows"),
        (lambda: ec.noise.posterior_collapse(1.0, ec.noise.Laplace()), "a Laplace score does not fall"),
        (lambda: tail_constants(ec.noise.Contamination(0.1, 1.0, ec.noise.Cauchy())), "its heavy part may"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()
