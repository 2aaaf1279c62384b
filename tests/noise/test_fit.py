"""Fits to draws whose parameters are known. Seeds are fixed; the coverage test states its false-alarm rate."""

import dataclasses
import time

import pytest
import torch
from scipy import stats

import entryclip as ec
from entryclip.quantiles import Histogram


def draw(alpha, sigma, heavy, count=10**6, seed=0):
    return ec.noise.Contamination(alpha, sigma, heavy).sample((count,), torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e6])
def test_parameters_come_back_in_any_unit(unit):
    found = ec.noise.fit(unit * draw(0.05, 1.0, ec.noise.Cauchy(3.0)))
    assert found.alpha_gamma.value / unit == pytest.approx(0.15, rel=0.03)
    assert found.sigma.value / unit == pytest.approx(1, rel=0.01)
    assert found.alpha.value == pytest.approx(0.05, rel=0.06)
    assert found.gamma.value / unit == pytest.approx(3, rel=0.08)
    assert found.contaminated
    assert found.identified
    assert str(found).startswith("alpha*gamma 0.15" if unit == 1 else "alpha*gamma 1.5")
    assert isinstance(found.noise.heavy, ec.noise.Cauchy)


@pytest.mark.parametrize("fixed", [True, False])
def test_student_noise(fixed):
    found = ec.noise.fit(draw(0.3, 1.0, ec.noise.StudentT(2.5, 3.0)), nu=2.5 if fixed else None)
    assert found.nu.value == pytest.approx(2.5, rel=0.05)
    assert (found.nu.low < found.nu.high) is not fixed
    assert (found.alpha.value, found.gamma.value) == pytest.approx((0.3, 3.0), rel=0.05)
    assert found.noise.tail_index == found.nu.value
    assert str(found).startswith("alpha*gamma^2.5" if fixed else "alpha*gamma^2.4")


def test_intervals_cover():
    """95 % intervals of the product over 60 draws: at most 9 misses unless an event of probability 1e-3 happens."""
    allowed = stats.binom.isf(1e-3, 60, 0.05)
    for heavy in (ec.noise.Cauchy(3.0), ec.noise.Cauchy(1.0)):
        missed = 0
        for seed in range(60):
            low, high = ec.noise.fit(draw(0.05, 1.0, heavy, 10**5, seed)).alpha_gamma[1:]
            missed += not low <= 0.05 * heavy.gamma <= high
        assert missed <= allowed
        assert high - low < 0.3 * low  # and they say something


def test_it_says_when_alpha_and_gamma_are_not_identified():
    found = ec.noise.fit(draw(0.05, 1.0, ec.noise.Cauchy(1.0), 3 * 10**4))
    assert not found.identified
    assert "not separately identified" in str(found)
    assert found.alpha_gamma.low < 0.05 < found.alpha_gamma.high
    spread = lambda each: each.high / each.low  # noqa: E731
    assert spread(found.alpha_gamma) < 0.7 * min(spread(found.alpha), spread(found.gamma))


@pytest.mark.parametrize("nu", [1.0, None])
def test_gaussian_entries_have_no_heavy_part(nu):
    found = ec.noise.fit(2 * torch.randn(10**5, generator=torch.Generator().manual_seed(0)), nu=nu)
    assert not found.contaminated
    assert not found.identified
    assert found.sigma.low < 2 < found.sigma.high
    assert isinstance(found.noise, ec.noise.Gaussian)
    assert "no heavy part found in 100000 entries" in str(found)


def test_heavy_entries_alone():
    found = ec.noise.fit(draw(1.0, 1.0, ec.noise.Cauchy(3.0)))
    assert found.alpha.high == 1
    assert 0.8 < found.alpha.low < found.alpha.value
    assert found.sigma.low == 0
    assert found.gamma.value == pytest.approx(3, rel=0.02)


def test_histograms_of_parts_give_the_same_fit():
    x = draw(0.05, 1.0, ec.noise.Cauchy(3.0), 10**5).reshape(100, 1000)
    x[:5] = 0  # rows without a gradient
    parts = Histogram.of(x[:40]) + Histogram.of(x[40:])
    assert ec.noise.fit(parts) == ec.noise.fit(x)
    without = ec.noise.fit(x[5:].double())
    assert ec.noise.fit(x) == dataclasses.replace(without, zeros=5000)  # zeros are counted and left out
    assert ec.noise.fit(x).count == 95_000


def test_deviance_tells_a_wrong_model():
    right = ec.noise.fit(draw(0.05, 1.0, ec.noise.Cauchy(3.0)))
    wrong = ec.noise.fit(draw(0.3, 1.0, ec.noise.StudentT(6.0, 4.0)))  # not Cauchy
    assert right.deviance < 1.5 < 3 < wrong.deviance


def test_ten_million_entries_in_a_third_of_a_second():
    x = draw(0.05, 1.0, ec.noise.Cauchy(3.0), 10**7)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        ec.noise.fit(x)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.3


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ec.noise.fit(torch.ones(99)), "at least 100 non-zero entries, got 99"),
        (lambda: ec.noise.fit(torch.zeros(1000)), "at least 100 non-zero entries, got 0"),
        (lambda: ec.noise.fit(torch.full((1000,), float("nan"))), "1000 entries that are NaN or infinite"),
        (lambda: ec.noise.fit(torch.ones(1000), nu=0.0), "nu must be a finite number above 0, or None to fit it"),
        (lambda: ec.noise.fit(torch.arange(1000)), "x must be one of"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()


@pytest.mark.parametrize("x", [torch.ones(1000), torch.linspace(-1, 1, 1000), torch.tensor([1.0, 1e30]).repeat(100)])
def test_odd_data_gives_numbers(x):
    found = ec.noise.fit(x)
    for name in ("alpha_gamma", "sigma", "alpha", "gamma", "nu"):
        assert all(value >= 0 for value in getattr(found, name)), name  # not NaN
