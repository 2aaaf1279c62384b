"""Laws of one entry against scipy's and against their own draws. Each Kolmogorov-Smirnov test alarms falsely once in
10^4 runs, and the seeds are fixed."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from scipy import integrate, stats

import entryclip as ec

LAWS = {
    "gaussian": (ec.noise.Gaussian(2.0), stats.norm(scale=2.0)),
    "cauchy": (ec.noise.Cauchy(3.0), stats.cauchy(scale=3.0)),
    "t2": (ec.noise.StudentT(2.0, 0.5), stats.t(2.0, scale=0.5)),
    "t0.7": (ec.noise.StudentT(0.7), stats.t(0.7)),
    "laplace": (ec.noise.Laplace(1.5), stats.laplace(scale=1.5)),
    "t1e6": (ec.noise.StudentT(1e6, 3.0), stats.t(1e6, scale=3.0)),
}
MIXTURE = ec.noise.Contamination(alpha=0.3, sigma=1.0, heavy=ec.noise.Cauchy(3.0))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", LAWS)
def test_draws_follow_the_law(name):
    law, reference = LAWS[name]
    draws = law.sample((200, 500), seeded(), dtype=torch.float64).numpy().ravel()
    assert stats.kstest(draws, reference.cdf).pvalue > 1e-4


def test_draws_of_the_mixture():
    draws = MIXTURE.sample((2, 200, 250), seeded(), dtype=torch.float64).numpy().ravel()
    cdf = lambda x: 0.7 * stats.norm.cdf(x) + 0.3 * stats.cauchy(scale=3.0).cdf(x)  # noqa: E731
    assert stats.kstest(draws, cdf).pvalue > 1e-4


@pytest.mark.parametrize("name", LAWS)
def test_density_is_scipys(name):
    law, reference = LAWS[name]
    x = np.concatenate([[0.0], np.logspace(-8, 2, 60), -np.logspace(-3, 2, 9)])
    np.testing.assert_allclose(law.log_density(x), reference.logpdf(x), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(law.density(torch.from_numpy(x)).numpy(), law.density(x), rtol=1e-12)
    near = x[np.abs(x) < 10].astype(np.float32)
    np.testing.assert_allclose(law.density(jnp.asarray(near)), law.density(near.astype(float)), rtol=1e-4)


@pytest.mark.parametrize("name", LAWS)
def test_cdf_and_quantile_are_scipys_and_inverse_to_each_other(name):
    law, reference = LAWS[name]
    x = np.concatenate([-np.logspace(-6, 1, 40), [0.0], np.logspace(-6, 1, 40)])
    np.testing.assert_allclose(law.cdf(x), reference.cdf(x), rtol=1e-10)
    np.testing.assert_allclose(law.cdf(torch.from_numpy(x)), law.cdf(x))
    np.testing.assert_allclose(law.cdf(x) + law.cdf(-x), 1, rtol=1e-12)
    p = np.concatenate([np.logspace(-12, -1, 30), [0.3, 0.5, 0.9, 0.999]])
    np.testing.assert_allclose(law.quantile(p), reference.ppf(p), rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(law.cdf(law.quantile(p)), p, rtol=1e-8)


def test_the_left_tail_keeps_its_digits():
    assert ec.noise.Cauchy(2.0).cdf(-1e30) == pytest.approx(2 / (math.pi * 1e30), rel=1e-12)
    assert ec.noise.Laplace(1.0).cdf(-600.0) == pytest.approx(0.5 * math.exp(-600), rel=1e-12)
    assert ec.noise.StudentT(0.5).cdf(-1e20) == pytest.approx(stats.t(0.5).sf(1e20), rel=1e-9)
    assert MIXTURE.cdf(-1e9) == pytest.approx(0.3 * 3 / (math.pi * 1e9), rel=1e-9)
    assert ec.noise.Gaussian(0.0).cdf([-1e-300, 0.0]).tolist() == [0.0, 1.0]


HEAVY = [ec.noise.Cauchy(3.0), ec.noise.StudentT(0.7, 2.0), ec.noise.Laplace(4.0), ec.noise.Gaussian(5.0)]


@pytest.mark.parametrize("heavy", HEAVY, ids=str)
def test_contamination_by_every_law(heavy):
    noise = ec.noise.Contamination(0.3, 1.0, heavy)
    p = np.concatenate([np.logspace(-9, -1, 12), [0.5, 0.7, 0.99]])
    np.testing.assert_allclose(noise.cdf(noise.quantile(p)), p, rtol=1e-9)
    assert noise.quantile(0.2).shape == ()
    step = 1e-5
    slope = (noise.cdf([-2 + step]) - noise.cdf([-2 - step])) / (2 * step)
    assert slope[0] == pytest.approx(float(noise.density(2.0)), rel=1e-6)
    draws = noise.sample((200, 500), seeded(), dtype=torch.float64).numpy().ravel()
    assert stats.kstest(draws, noise.cdf).pvalue > 1e-4


def test_quantiles_in_a_point_mass():
    noise = ec.noise.Contamination(0.2, 0.0, ec.noise.Laplace(1.0))
    assert noise.quantile([0.3, 0.5, 0.8]).tolist() == [0.0, 0.0, 0.0]
    np.testing.assert_allclose(noise.quantile([0.05, 0.95]), [-math.log(2), math.log(2)], rtol=1e-10)


def test_log_density_does_not_overflow_far_out():
    far = 1e200
    assert ec.noise.Cauchy(2.0).log_density(far) == pytest.approx(math.log(2 / math.pi) - 2 * math.log(far), rel=1e-12)
    assert ec.noise.StudentT(3.0).log_density(far) == pytest.approx(
        4 * -math.log(far) + math.log(6 * math.sqrt(3) / math.pi), rel=1e-12
    )
    assert math.isfinite(MIXTURE.log_density(far))


def test_density_of_the_mixture_integrates_to_one():
    total, error = integrate.quad(MIXTURE.density, -np.inf, np.inf, points=None, limit=400)
    assert total == pytest.approx(1, abs=1e-7)
    assert error < 1e-6
    assert ec.noise.Contamination(1.0, 0.0, ec.noise.Cauchy(2.0)).density(0.5) == ec.noise.Cauchy(2.0).density(0.5)
    assert ec.noise.Contamination(0.0, 2.0, ec.noise.Cauchy(2.0)).density(0.5) == ec.noise.Gaussian(2.0).density(0.5)


def test_without_contamination_it_is_gaussian_noise():
    clean = ec.noise.Contamination(0.0, 2.0, ec.noise.Cauchy(3.0))
    assert torch.equal(clean.sample((5, 6), seeded()), ec.noise.Gaussian(2.0).sample((5, 6), seeded()))
    assert clean.tail_index == math.inf


def test_tail_index():
    assert ec.noise.Laplace().tail_index == ec.noise.Contamination(0.5, 1.0, ec.noise.Laplace()).tail_index == math.inf
    indices = [ec.noise.Gaussian().tail_index, ec.noise.Cauchy().tail_index, ec.noise.StudentT(2.5).tail_index]
    assert indices == [math.inf, 1.0, 2.5]
    assert MIXTURE.tail_index == 1.0


def test_the_generator_decides_and_sets_the_place():
    assert torch.equal(MIXTURE.sample((40, 50), seeded(1)), MIXTURE.sample((40, 50), seeded(1)))
    assert not torch.equal(MIXTURE.sample((40, 50), seeded(1)), MIXTURE.sample((40, 50), seeded(2)))
    for law in (MIXTURE, *(law for law, _ in LAWS.values())):
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            assert law.sample((2, 3, 4), seeded(), dtype=dtype).dtype == dtype
        assert law.sample((), seeded()).shape == ()
        assert law.sample((0, 3)).shape == (0, 3)


def test_extremes_in_fp32_are_not_all_the_same():
    """A 24-bit uniform would give the largest of 10^7 Cauchy entries only a handful of values."""
    tops = {float(ec.noise.StudentT(1.0).sample((2 * 10**6,), seeded(seed)).abs().max()) for seed in range(5)}
    assert len(tops) == 5
    draws = ec.noise.StudentT(1.0).sample((4 * 10**6,), seeded()).abs()
    assert len(draws[draws > 1e4].unique()) == int((draws > 1e4).sum())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ec.noise.Gaussian(-1.0), "sigma must be a finite number >= 0, got -1.0"),
        (lambda: ec.noise.Cauchy(0.0), "gamma must be a finite number above 0, got 0.0"),
        (lambda: ec.noise.StudentT(math.nan), "nu must be a finite number above 0, got nan"),
        (lambda: ec.noise.Contamination(1.5, 1.0, ec.noise.Cauchy()), r"must be a number in \[0, 1\], got 1.5"),
        (lambda: ec.noise.Contamination(0.5, 1.0, MIXTURE), "heavy must be Cauchy, StudentT, Laplace or Gaussian"),
        (lambda: ec.noise.Laplace(-1.0), "scale must be a finite number above 0, got -1.0"),
        (lambda: ec.noise.Laplace().quantile([0.5, 1.0]), r"p must be in \(0, 1\), got \[0.5, 1.0\]"),
        (lambda: ec.noise.Gaussian().sample((2, -1)), "shape must be integers >= 0"),
        (lambda: ec.noise.Gaussian().sample((2, 2), np.random.default_rng(0)), "generator must be a torch.Generator"),
        (lambda: ec.noise.Gaussian().sample((2, 2), dtype=torch.int64), "dtype must be a floating-point one"),
        (lambda: ec.noise.Gaussian(0.0).density(1.0), "point mass and has no density"),
        (lambda: ec.noise.Cauchy().density(torch.arange(3)), "must be one of float64"),
    ],
)
def test_bad_input(make, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make()
