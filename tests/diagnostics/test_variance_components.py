"""The variance of log|x| by rows, columns and single entries: estimates without bias, and their scatter by chance."""

import math

import numpy as np
import pytest
import torch

from entryclip.diagnostics.variance_components import mean_components, variance_components

SCALED = (0.5, 0.3)  # the standard deviations of log-scales of rows and columns


def draw(rng, shape, density, scaled=(0.0, 0.0), law="standard_normal"):
    rows, columns = (np.exp(sd * rng.standard_normal(side)) for sd, side in zip(scaled, shape, strict=True))
    x = rows[:, None] * getattr(rng, law)(shape) * columns
    return x * (rng.random(shape) < density)


@pytest.mark.parametrize(("law", "rest"), [("standard_normal", math.pi**2 / 8), ("standard_cauchy", math.pi**2 / 4)])
@pytest.mark.parametrize(("shape", "density"), [((4, 7), 1.0), ((12, 9), 0.5)])
def test_the_mean_of_many_estimates_is_the_truth(shape, density, law, rest):
    """By 3000 matrices with few entries, to 4.5 standard errors of their mean: wrong by chance once in 10^4 tests."""
    rng = np.random.default_rng(0)
    found = np.array([variance_components(draw(rng, shape, density, SCALED, law))[:3] for _ in range(3000)])
    error = found.std(0) / math.sqrt(len(found))
    assert (np.abs(found.mean(0) - [0.25, 0.09, rest]) < 4.5 * error).all()
    assert (error < 0.05).all()


@pytest.mark.parametrize(("shape", "density"), [((2, 64), 1.0), ((40, 30), 1.0), ((64, 96), 0.2)])
def test_the_errors_are_those_by_chance(shape, density):
    """The deviation of 400 estimates is known to 4 %, if they are normal; they are a little skew."""
    rng = np.random.default_rng(0)
    found = np.array([variance_components(draw(rng, shape, density)) for _ in range(400)])
    assert found[:, :2].std(0) == pytest.approx(found[:, 3:].mean(0), rel=0.2)


def test_uneven_means_more_than_chance():
    """Of 300 small even matrices 1 % may be called uneven, more than three standard errors; uneven ones all are."""
    rng = np.random.default_rng(0)
    even = [variance_components(draw(rng, (6, 8), 1.0)).uneven for _ in range(300)]
    assert sum(even) <= 6
    assert all(variance_components(draw(rng, (60, 80), 1.0, SCALED)).uneven for _ in range(20))
    assert not any(variance_components(draw(rng, (60, 80), 1.0, (0.1, 0.1))).uneven for _ in range(20))


def test_a_mean_over_matrices_is_more_certain():
    found = [variance_components(draw(np.random.default_rng(i), (6, 8), 1.0, (0.5, 0.0))) for i in range(100)]
    mean = mean_components(found)
    assert mean.uneven
    assert mean.rows == pytest.approx(0.25, abs=0.1)
    assert mean.rows_error == pytest.approx(np.mean([each.rows_error for each in found]) / 10, rel=0.2)


def test_one_spike_and_units_hardly_matter():
    x = draw(np.random.default_rng(0), (100, 80), 1.0)
    x[3, 5] = 1e9
    found = variance_components(1e-20 * x)
    assert not found.uneven
    assert found[:3] == pytest.approx(variance_components(x)[:3])


@pytest.mark.parametrize("x", [np.ones((1, 9)), np.ones((9, 1)), np.eye(5), np.diag([0.0, 3.0])])
def test_where_scales_cannot_be_told_from_entries_all_is_the_rest(x):
    found = variance_components(x * np.exp(np.arange(x.size)).reshape(x.shape))
    assert found[:2] == (0, 0)
    assert found[3:] == (math.inf, math.inf)
    assert not found.uneven


def test_zeros_have_no_variance():
    assert variance_components(np.zeros((3, 4))) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_and_numpy_agree(dtype):
    x = torch.from_numpy(draw(np.random.default_rng(0), (70, 50), 0.6, SCALED)).to(dtype)
    np.testing.assert_allclose(variance_components(x), variance_components(x.double().numpy()), rtol=1e-3, atol=1e-5)
