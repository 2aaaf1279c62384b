"""Robust scales of rows and columns, for every array library."""

import numpy as np
import pytest
import torch
from libraries import CASES, make, values

from entryclip.scales import RowColumnScales, row_column_scales

RNG = np.random.default_rng(0)


def separable(m, n, sd=1.0, seed=1):
    """Gaussian entries with log-normal scales of rows and columns, and these scales with geometric mean 1."""
    rng = np.random.default_rng(seed)
    rows, columns = (np.exp(sd * rng.standard_normal(side)) for side in (m, n))
    x = rows[:, None] * rng.standard_normal((m, n)) * columns
    return x, rows / np.exp(np.log(rows).mean()), columns / np.exp(np.log(columns).mean())


def test_known_scales_are_recovered():
    """The log error of a scale of n Gaussian entries is sqrt(.6 / n), 2.4 and 3.2 %; all are within 5 of these."""
    x, rows, columns = separable(600, 1000)
    found = row_column_scales(x)
    np.testing.assert_allclose(np.log(found.rows / rows), 0, atol=5 * (0.6 / 1000) ** 0.5)
    np.testing.assert_allclose(np.log(found.columns / columns), 0, atol=5 * (0.6 / 600) ** 0.5)
    assert np.log(found.rows).mean() == pytest.approx(0, abs=1e-12)
    assert np.log(found.columns).mean() == pytest.approx(0, abs=1e-12)
    assert found.standardize(x).std() == pytest.approx(1, rel=0.01)


def test_three_rounds_are_enough():
    """What is left is a tenth of the sampling error of a scale, 4.5 and 5.5 % here."""
    x, _, _ = separable(200, 300)
    found, limit = row_column_scales(x), row_column_scales(x, 40)
    np.testing.assert_allclose(found.rows, limit.rows, rtol=5e-3)
    np.testing.assert_allclose(found.columns, limit.columns, rtol=5e-3)


@pytest.mark.parametrize("size", [1e3, 1e30, np.inf])
def test_a_spike_does_not_inflate_its_own_scale(size):
    """It counts as an entry of 2.5: in a column of 40 entries it adds at most 2.5 / 40 to a mean of .79."""
    x, _, _ = separable(40, 50)
    spiked = x.copy()
    spiked[3, 7] = size
    before, after = row_column_scales(x), row_column_scales(spiked)
    assert after.rows[3] == pytest.approx(before.rows[3], rel=0.15)
    assert after.columns[7] == pytest.approx(before.columns[7], rel=0.15)
    others = np.arange(40) != 3
    np.testing.assert_allclose(after.rows[others], before.rows[others], rtol=0.02)


@pytest.mark.parametrize(("library", "dtype"), [case for case in CASES if case[0] != "jax"] + [("jax", "float32")])
def test_all_libraries_and_dtypes(library, dtype):
    x, _, _ = separable(30, 40, 0.5)
    found = row_column_scales(make(library, dtype, x))
    expected = row_column_scales(x)
    tolerance = {"float64": 1e-9, "float32": 1e-4}.get(dtype, 2e-2)
    for name in RowColumnScales._fields:
        np.testing.assert_allclose(values(getattr(found, name)), getattr(expected, name), rtol=tolerance)
    assert str(found.rows.dtype).endswith("64" if dtype == "float64" else "32")


def test_each_matrix_of_a_batch_is_on_its_own():
    x = torch.from_numpy(np.stack([separable(12, 20, seed=seed)[0] for seed in range(6)])).view(2, 3, 12, 20)
    found = row_column_scales(x)
    assert [tuple(each.shape) for each in found] == [(2, 3), (2, 3, 12), (2, 3, 20)]
    alone = row_column_scales(x[1, 2])
    torch.testing.assert_close(found.rows[1, 2], alone.rows)
    torch.testing.assert_close(found.standardize(x)[1, 2], alone.standardize(x[1, 2]))


def test_zeros_are_left_out():
    """Rows of zeros have scale 0 and stay zero; zeros within a row do not make its scale smaller."""
    x, rows, _ = separable(100, 400)
    x[RNG.random(x.shape) < 0.7] = 0
    x[5] = 0
    x[:, 9] = 0
    found = row_column_scales(x)
    assert found.rows[5] == found.columns[9] == 0
    others = np.arange(100) != 5
    log = np.log(found.rows[others] / rows[others])
    assert log.std() < 2 * (0.6 / 120) ** 0.5
    standardized = found.standardize(x)
    assert (standardized[5] == 0).all()
    assert np.isfinite(standardized).all()
    empty = row_column_scales(np.zeros((3, 4)))
    assert empty.overall == 0
    assert not empty.standardize(np.zeros((3, 4))).any()


def test_a_start_takes_the_place_of_medians():
    """From the scales of another draw one round is enough; a row that was zero there, or is much smaller now, too."""
    x, _, _ = separable(60, 80)
    before = x * np.random.default_rng(9).choice([0.7, 1.3], x.shape)
    before[4] = 0
    x[7] *= 1e-6
    warm = row_column_scales(x, 3, start=row_column_scales(before))
    cold = row_column_scales(x, 40)
    np.testing.assert_allclose(warm.rows, cold.rows, rtol=0.02)
    np.testing.assert_allclose(warm.columns, cold.columns, rtol=0.02)


def test_the_input_is_not_written_to():
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0), requires_grad=True)
    kept = x.detach().clone()
    assert not row_column_scales(x).rows.requires_grad
    assert torch.equal(x, kept)
    positive = x.detach().abs()
    row_column_scales(positive)
    assert torch.equal(positive, kept.abs())


def test_nan_gives_nan_for_its_matrix_alone():
    x = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))
    x[0, 1, 2] = float("nan")
    found = row_column_scales(x)
    assert found.rows[0].isnan().all()
    assert found.rows[1].isfinite().all()


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_sizes_near_the_ends_of_fp32(scale):
    x = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(row_column_scales(scale * x).rows, row_column_scales(x).rows, rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("x", "options", "words"),
    [
        (np.ones(3), {}, r"x must have matrices with entries in them, \(..., m, n\), got shape \(3,\)"),
        (np.ones((0, 3)), {}, "got shape"),
        (np.ones((3, 3)), {"rounds": 0}, "rounds must be a whole number >= 1, got 0"),
    ],
)
def test_bad_input(x, options, words):
    with pytest.raises(ValueError, match=words):
        row_column_scales(x, **options)
