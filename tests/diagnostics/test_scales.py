"""The scales of rows and columns as a measurement: their shares in the variance of log|x|."""

import math

import numpy as np
import pytest
import torch
from libraries import make

import entryclip as ec
from entryclip.diagnostics.pooled_scales import scale_error
from entryclip.diagnostics.scales import GAUSSIAN_VARIANCE
from entryclip.quantiles import Histogram


def lognormal(side, sd, rng):
    return np.exp(sd * rng.standard_normal(side))


@pytest.mark.parametrize(("rows", "columns"), [(0.0, 0.0), (0.5, 0.0), (0.5, 1.0)])
def test_the_shares_are_those_of_the_noise(rows, columns):
    """The variance of 400 and 600 log-scales is known to 5 standard errors, sqrt(2/400) of itself each."""
    rng = np.random.default_rng(0)
    x = lognormal(400, rows, rng)[:, None] * rng.standard_normal((400, 600)) * lognormal(600, columns, rng)
    found = ec.diagnostics.scales(x)
    expected = [rows**2, columns**2, GAUSSIAN_VARIANCE]
    assert found.variance == pytest.approx(expected, rel=5 * math.sqrt(2 / 400), abs=5e-4)
    assert found.share.sum() == pytest.approx(1)
    assert found.share == pytest.approx(np.array(expected) / sum(expected), abs=0.05)


@pytest.mark.parametrize(
    ("shape", "density", "typical"),
    [((1, 500), 1.0, 0.0), ((2, 64), 1.0, 0.08), ((3, 20_000), 1.0, 0.004), ((64, 96), 0.05, 0.06), ((9, 5), 1.0, 0.1)],
)
def test_equal_scales_have_no_share_however_few_the_entries(shape, density, typical):
    """In the median of 21 Gaussian matrices; in each, four standard errors at most, of which the printed line warns."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((21, *shape)) * (rng.random((21, *shape)) < density)
    found = ec.diagnostics.scales(x)
    assert np.median(found.share[:, :2], 0).max() <= typical
    assert (found.variance[:, :2] <= 4 * np.median(found.error, 0)).all()
    assert found.variance[:, 2].mean() == pytest.approx(GAUSSIAN_VARIANCE, rel=0.15)


def test_few_entries_are_said_to_be_few():
    rng = np.random.default_rng(0)
    assert "; by chance rows up to 4%, columns up to 25%" in str(ec.diagnostics.scales(rng.standard_normal((2, 64))))
    one_row = str(ec.diagnostics.scales(rng.standard_normal((1, 500))))
    assert "columns 0%, rest 100%" in one_row
    assert one_row.endswith("too few entries in a row or column to tell its scale from them")
    assert str(ec.diagnostics.scales(rng.standard_normal((64, 64)))).endswith("(Gaussian entries: 1.23)")


def test_its_repr_is_one_short_line():
    found = ec.diagnostics.scales(np.random.default_rng(0).standard_normal((256, 200)))
    assert repr(found) == "<Scales of (256, 200): rows 0%, columns 0%, rest 100% of the variance of log|x|>"


def test_heavy_tails_are_in_the_rest():
    """Cauchy entries have pi^2 / 4; no row and no column differs."""
    x = np.random.default_rng(0).standard_cauchy((300, 300))
    found = ec.diagnostics.scales(x)
    assert found.variance[2] == pytest.approx(math.pi**2 / 4, rel=0.03)
    assert found.share[:2].sum() < 0.01


def test_the_error_of_a_scale_is_the_one_it_has():
    """By 400 scales of 300 entries each, whose variance is known to 5 sqrt(2/400)."""
    rng = np.random.default_rng(0)
    for x in (rng.standard_normal((400, 300)), rng.standard_cauchy((400, 300))):
        found = ec.diagnostics.scales(x)
        error = scale_error(Histogram.of(found.standardized)) / 300
        assert np.log(found.rows).var() == pytest.approx(error, rel=5 * math.sqrt(2 / 400))


def test_one_line_and_a_batch():
    x = torch.randn(2, 3, 40, 30, generator=torch.Generator().manual_seed(0))
    found = ec.diagnostics.scales(x)
    assert found.share.shape == (2, 3, 3)
    assert found.standardized.shape == (2, 3, 40, 30)
    assert len(str(found).splitlines()) == 1
    assert str(found).startswith("variance of log|x|: rows ")
    assert str(found).endswith("median of 6 matrices")
    assert "by chance" not in str(found)
    np.testing.assert_allclose(ec.diagnostics.scales(x[1, 2]).rows, found.rows[1, 2])
    product = found.overall[..., None, None] * found.rows[..., None] * found.columns[..., None, :]
    np.testing.assert_allclose(found.standardized * product, x, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype):
    x = np.random.default_rng(0).standard_normal((50, 40))
    found = ec.diagnostics.scales(make("torch", dtype, x))
    np.testing.assert_allclose(found.rows, ec.diagnostics.scales(x).rows, rtol=0.02)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_units_do_not_matter(scale):
    x = np.random.default_rng(0).standard_normal((20, 30))
    found, scaled = ec.diagnostics.scales(x), ec.diagnostics.scales(scale * x)
    np.testing.assert_allclose(scaled.standardized, found.standardized, rtol=1e-9)
    assert scaled.overall == pytest.approx(scale * found.overall, rel=1e-9)


def test_zero_matrices_have_no_scale():
    found = ec.diagnostics.scales(np.zeros((2, 3, 4)))
    assert not found.overall.any()
    assert not found.share.any()


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.full((3, 3), np.nan), "x has 9 entries that are NaN or infinite, which have no scale"),
        (np.ones(3), r"x must have matrices with entries in them, \(..., m, n\), got shape \(3,\)"),
    ],
)
def test_bad_input(x, words):
    with pytest.raises(ValueError, match=words):
        ec.diagnostics.scales(x)
