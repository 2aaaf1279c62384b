"""Robust scales of the rows and columns of a matrix: x_ij = overall * rows_i * columns_j * z_ij.

The gradient of a weight is a sum of outer products, so that its rows (outputs) and its columns (inputs) differ in
scale. Entries of one matrix that are pooled as they are then look heavy-tailed although each of them is not. Here z has
the size of standard Gaussian noise in every row and every column.

The scales are found by alternating rounds, rows before columns. The first round takes medians of |x| over its non-zero
entries. Every further round multiplies a scale by the mean of min(|z|, 2.5), over that of a Gaussian: Huber's scale
estimate, nearly as precise as the mean of |x|, in which an entry of any size counts as one of 2.5. So a spike hardly
moves the scale by which it is measured.
"""

import math
from typing import NamedTuple

from .arrays import Array, cast, check_floating, constant, quiet, widen
from .quantiles.quantile import quantile_abs

ROUNDS = 3  # scales are then a tenth of their sampling error from their limit, or nearer
CLIP = 2.5  # standardised entries count as if they were no larger: 1.2 % of Gaussian ones are
_MEDIAN = 0.6744897501960817  # of |z|, z standard Gaussian
_MEAN = math.sqrt(2 / math.pi) * -math.expm1(-(CLIP**2) / 2) + CLIP * math.erfc(CLIP / math.sqrt(2))  # of min(|z|, 2.5)


class RowColumnScales(NamedTuple):
    """The scales of the matrices x, (..., m, n): entry ij is of size overall * rows_i * columns_j.

    The geometric mean of `rows` is 1, and so is that of `columns`. A row or column of zeros has scale 0.
    """

    overall: Array  # (...)
    rows: Array  # (..., m)
    columns: Array  # (..., n)

    def standardize(self, x: Array) -> Array:
        """Divide `x`, (..., m, n), by its scales; rows and columns of scale 0 are left alone."""
        x = widen(x) / _nonzero(self.rows)[..., :, None]
        return x / _nonzero(self.columns * self.overall[..., None])[..., None, :]


def row_column_scales(x: Array, rounds: int = ROUNDS, *, start: RowColumnScales | None = None) -> RowColumnScales:
    """Estimate the scales of the rows and columns of each matrix of `x`, (..., m, n), in fp32 at least.

    rounds   how many times rows and columns are estimated in turn
    start    scales of similar matrices, as of the step before: they take the place of the medians, which cost the most.
             From there a scale can fall to any value in one round, and grow by a factor of about 3

    An infinite entry counts as a large one. NaN makes all scales of its matrix NaN. Zeros are left out.

    >>> import torch
    >>> x = torch.randn(300, 200, generator=torch.Generator().manual_seed(0))
    >>> x[:100] *= 8.0
    >>> x[0, 0] = 1e9
    >>> found = row_column_scales(x)
    >>> round(float(found.rows[:100].mean() / found.rows[100:].mean())), float(found.rows[0]) < 4
    (8, True)
    """
    xp = check_floating(x)
    if x.ndim < 2 or 0 in x.shape[-2:]:
        raise ValueError(f"x must have matrices with entries in them, (..., m, n), got shape {tuple(x.shape)}")
    if not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 1:
        raise ValueError(f"rounds must be a whole number >= 1, got {rounds!r}")
    with quiet(xp):
        z = xp.abs(widen(x.detach() if hasattr(x, "detach") else x))  # ours: it is divided in place
        counts = _nonzero_counts(z)
        if start is None:
            rows, z = _medians(z, -1)
            columns, z = _medians(z, -2)
        else:
            rows, columns = _or_one(start.rows, counts[0]), _or_one(start.columns * start.overall[..., None], counts[1])
            z = _divided_(_divided_(z, rows, -1), columns, -2)
        for _ in range(rounds - (start is None)):
            rows, z = _refined(rows, z, counts[0], -1)
            columns, z = _refined(columns, z, counts[1], -2)
        return _normalized(rows, columns)


def _nonzero_counts(size: Array) -> tuple[Array, Array]:
    """Return the number of non-zero entries in each row and in each column."""
    used = check_floating(size).sign(size)
    return used.sum(-1), used.sum(-2)


def _medians(z: Array, axis: int) -> tuple[Array, Array]:
    """Return the medians of |z| along an axis, non-zero entries only, over that of a Gaussian, and z over them."""
    scale = _at_least_tiny(quantile_abs(z, 0.5, dim=axis, nonzero=True) / _MEDIAN)
    return scale, _divided_(z, scale, axis)


def _refined(scale: Array, z: Array, count: Array, axis: int) -> tuple[Array, Array]:
    """Return scales after one step of Huber's estimate along an axis with so many non-zero entries, and z over it."""
    factor = check_floating(z).clip(z, None, CLIP).sum(axis) / (_nonzero(count) * _MEAN)
    return _at_least_tiny(scale * factor), _divided_(z, factor, axis)


def _divided_(z: Array, scale: Array, axis: int) -> Array:
    """Divide `z` by scales of its rows (-1, the axis they were reduced over) or columns (-2), in place but in jax."""
    scale = _nonzero(scale)
    z /= scale[..., :, None] if axis == -1 else scale[..., None, :]
    return z


def _normalized(rows: Array, columns: Array) -> RowColumnScales:
    """Move the geometric means of rows and columns to the overall scale."""
    (rows, row_mean), (columns, column_mean) = _over_geometric_mean(rows), _over_geometric_mean(columns)
    return RowColumnScales(row_mean * column_mean, rows, columns)


def _over_geometric_mean(scale: Array) -> tuple[Array, Array]:
    """Return the scales over the geometric mean of the positive ones, and that mean (0 where there is none)."""
    xp = check_floating(scale)
    used = cast(scale > 0, scale.dtype)
    count = used.sum(-1)
    mean = xp.exp(xp.log(_nonzero(scale)).sum(-1) / _nonzero(count))
    return scale / mean[..., None], mean * cast(count > 0, scale.dtype)


def _at_least_tiny(scale: Array) -> Array:
    """Raise scales that are positive and subnormal to the smallest normal number, by which fp32 can be divided."""
    xp = check_floating(scale)
    tiny = constant(float(xp.finfo(scale.dtype).tiny), scale)
    return xp.where((scale > 0) & (scale < tiny), tiny, scale)


def _or_one(scale: Array, count: Array) -> Array:
    """Return the start of scales: 1 where it is 0 or not finite and there are entries, 0 where there are none."""
    xp = check_floating(scale)
    known = xp.where((scale > 0) & xp.isfinite(scale), scale, xp.ones_like(scale))
    return xp.where(count > 0, known, xp.zeros_like(scale))


def _nonzero(scale: Array) -> Array:
    """Replace zeros by one, so that what they divide stays as it is."""
    xp = check_floating(scale)
    return xp.where(scale == 0, xp.ones_like(scale), scale)
