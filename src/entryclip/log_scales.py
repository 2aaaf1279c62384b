"""Row and column scales of a matrix in one pass, from means of log |x|: log |x_ij| = g + rows_i + columns_j + rest.

A spike moves a mean of logarithms by little (one of 10^6 standard deviations in a row of 1000 by 1.4 %), so that it
does not hide itself by raising its own scale, and no median has to be found. A ceiling bounds what it can move. The
logarithm is read off the bit pattern (exponent and mantissa as one fixed-point number, within .086 of log2): sums of
integers are the same in every order, so that parts of a matrix, tiles on a device or shards on processes, add up to the
same bits.

The ceiling is a guess, from the size that the matrix had before. Where entries come near it on average, the matrix has
outgrown it as a whole, as gradients do behind a map that starts at 0. Then what the ceiling cut off is added again to
the mean of all; rows and columns that all reach it cannot be told apart, and count as equal. Spikes alone do not bring
that about: half of all entries would have to be spikes. Rows or columns that are far larger than the others raise the
ceiling of the next step (`_level`).

Means of few entries scatter. What of the scatter of the row means exceeds that of equal rows is taken for real, and the
means are shrunk towards their common one by that share (Stein's estimate): rows of equal scale stay as they are. A
single row far beyond chance among many equal ones is no matter of their scatter, and keeps its own mean (the limited
translation of Efron and Morris 1971). A row
or column with a single entry that is not 0 has no scale of its own, and counts as one of the common size. So the
entries of a vector are compared with each other.

`entryclip.scales` has the more precise estimates for diagnostics, which take several passes.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from .arrays import Array, cast, constant, double, namespace, quiet
from .dtensor import all_reduce, is_dtensor, local_slices, shard_groups

ONE = 1 << 23  # a factor of two, in the bit pattern of fp32
BIAS = 127
_INFINITY = 0x7F80_0000
# Mean and variance of this logarithm of |z|, z standard Gaussian, by numerical integration.
GAUSSIAN_MEAN = -0.973654
GAUSSIAN_VARIANCE = 2.568639
NARROW = 32  # a side of fewer, from 2 on, leaves the scales uncertain, and a few spikes make up most of a row or column
SURE = 36.0  # variances: a mean logarithm whose square is more than so many beyond those of chance is real, six sigma
NEAR = 6.0  # octaves: a matrix whose mean logarithm is as near to the ceiling as this has outgrown it
UNEVEN = 8.0  # octaves: where the largest scale is so far above the mean, the next step's ceiling rises with it
SMALLEST, LARGEST = -120.0, 120.0  # scales beyond 2^+-120 are taken as these, so that 1 / scale is a number


@dataclass(frozen=True)
class LogScales:
    """The scales of matrices (..., m, n): entry ij is of size rows_i columns_j, if it were Gaussian its SD."""

    rows: Array  # (..., m, 1)
    columns: Array  # (..., 1, n)
    count: Array  # (..., 1, 1): entries that are not 0
    level: Array  # (..., 1, 1): the mean of log2 |x|, more where some rows or columns are far larger: see `_level`
    outgrown: Array  # (..., 1, 1): whether the matrix as a whole has outgrown the ceiling

    def product(self) -> Array:
        """Return the scale of every entry, (..., m, n)."""
        return self.rows * self.columns

    def local(self, x: Any) -> "LogScales":
        """Return the part that belongs to this process's shard of a DTensor; all of it for any other array."""
        if not is_dtensor(x):
            return self
        *batch, own_rows, own_columns = local_slices(x)
        rows, columns = self.rows[(*batch, own_rows)], self.columns[(*batch, slice(None), own_columns)]
        return LogScales(rows, columns, *(each[tuple(batch)] for each in (self.count, self.level, self.outgrown)))


def log_bits(x: Array) -> Array:
    """Return the bit patterns of |x| in fp32 as integers: NaN as inf, 2^23 a factor of two, 0 for zero.

    >>> log_bits(np.array([-4.0, 2.0, 0.0])) / 2**23 - 127
    array([   2.,    1., -127.])
    """
    xp = namespace(x)
    narrow = xp.abs(cast(x, xp.float32))
    return xp.clip(narrow.view(xp.int32), None, _INFINITY)


def ceiling_bits(ceiling: Array) -> Array:
    """Return the bit patterns of powers of two as integers, at most that of inf."""
    xp = namespace(ceiling)
    return cast((xp.clip(ceiling, -126, 128) + BIAS) * ONE, xp.int32)


def log_scales(x: Array, variance: Array | float = GAUSSIAN_VARIANCE, ceiling: Array | None = None) -> LogScales:
    """Estimate the scales of each matrix of `x`, (..., m, n), as fp32. All processes of a DTensor get them all.

    variance   of log2 |x| within a row and column, (..., 1, 1), from which the means' scatter by chance follows
    ceiling    entries beyond this power of two count as that, (..., 1, 1)

    >>> x = torch.randn(500, 400, generator=torch.Generator().manual_seed(0)) * 3
    >>> x[:250] *= 8
    >>> x[0, 0] = 1e9
    >>> found = log_scales(x)
    >>> round(float(found.rows[:250].mean() / found.rows[250:].mean())), f"{float(found.product()[250:].mean()):.1f}"
    (8, '3.0')
    """
    return scales_of_sums(_sums(x, ceiling), variance, ceiling)


class LogSums(NamedTuple):
    """Sums of `log_bits` under a ceiling, and counts of entries that are not 0: whole numbers in fp64."""

    row_sums: Array  # (..., m, 1)
    row_counts: Array
    column_sums: Array  # (..., 1, n)
    column_counts: Array
    excess: Array  # (..., 1, 1): what the ceiling cut off, over all entries


def scales_of_sums(sums: LogSums, variance: Array | float, ceiling: Array | float | None = None) -> LogScales:
    """Estimate scales from the sums under a ceiling, (..., 1, 1): see `log_scales`."""
    ceiling = math.inf if ceiling is None else ceiling
    row_sums, row_counts, column_sums, column_counts, excess = sums
    size = row_sums.shape[-2] * column_sums.shape[-1]
    with quiet(namespace(row_sums)):
        count = row_counts.sum(-2, keepdims=True)
        mean = row_sums.sum(-2, keepdims=True) / _at_least_one(count)
        outgrown = (2 * count >= size) & (mean / ONE - BIAS > ceiling - NEAR)
        rows = _shrunk(row_sums, row_counts, mean, variance, -2)
        columns = _shrunk(column_sums, column_counts, mean, variance, -1)
        xp = namespace(mean)
        mean = xp.where(outgrown, mean + excess / _at_least_one(count), mean)
        together = xp.clip(mean / ONE - BIAS - GAUSSIAN_MEAN + rows, SMALLEST, LARGEST)
        power = [cast(xp.exp2(each), xp.float32) for each in (together, columns)]
        kept = _level(mean / ONE - BIAS, rows, columns)
    return LogScales(power[0], power[1], cast(count, xp.float32), cast(kept, xp.float32), outgrown)


def _level(mean: Array, rows: Array, columns: Array) -> Array:
    """Return what the next ceiling stands above: the mean of log2 |x|, or `UNEVEN` octaves below the largest line.

    Otherwise entries of a row that is always so large would stand at the ceiling, and it would never have its scale.
    Two thirds of a row must be large for that: with fewer, spikes under a ceiling do not raise the next.

    In a narrow matrix a few spikes make up two thirds of a line, so that its ceiling never rises.

    rows, columns   how many octaves they lie above the mean, (..., m, 1) and (..., 1, n)
    """
    side = min(rows.shape[-2], columns.shape[-1])
    if side < NARROW and side != 1:
        return mean
    xp = namespace(mean)
    largest = xp.maximum(xp.amax(rows, -2, keepdims=True), xp.amax(columns, -1, keepdims=True))
    return mean + xp.clip(largest - UNEVEN, 0.0, None)


def _shrunk(sums: Array, counts: Array, mean: Array, variance: Array | float, axis: int) -> Array:
    """Return how far each mean logarithm lies from the common one, as powers of two, shrunk by what is chance."""
    xp = namespace(sums)
    used = counts > 1
    offset = xp.where(used, (sums / _at_least_one(counts) - mean) / ONE, xp.zeros_like(sums))
    number = cast(used, sums.dtype).sum(axis, keepdims=True)
    scatter = (offset * offset).sum(axis, keepdims=True) / _at_least_one(number - 1)
    by_chance = variance * xp.where(used, 1 / _at_least_one(counts), xp.zeros_like(counts))
    chance = by_chance.sum(axis, keepdims=True) / _at_least_one(number)
    share = xp.where(scatter > 0, 1 - chance / _or_one(scatter), xp.zeros_like(scatter))
    beyond = 1 - SURE * by_chance / _or_one(offset * offset)
    return xp.clip(xp.maximum(share, beyond), 0.0, None) * offset


def _sums(x: Any, ceiling: Array | None) -> LogSums:
    """Return the sums and counts of an array; whole numbers in fp64 (fp32 in jax without its x64 switch)."""
    if not is_dtensor(x):
        return _local_sums(x, ceiling)
    *batch, rows, columns = local_slices(x)
    local = _local_sums(x.to_local(), None if ceiling is None else ceiling[tuple(batch)])
    shape, n = tuple(x.shape[:-1]), x.shape[-1]
    by_row = torch.zeros(2, *shape, 1, dtype=torch.float64, device=local[0].device)
    by_column = torch.zeros(2, *shape[:-1], 1, n, dtype=torch.float64, device=local[0].device)
    excess = torch.zeros(*shape[:-1], 1, 1, dtype=torch.float64, device=local[0].device)
    by_row[(slice(None), *batch, rows)] = torch.stack(local[:2])
    by_column[(slice(None), *batch, slice(None), columns)] = torch.stack(local[2:4])
    excess[tuple(batch)] = local.excess
    parts = (by_row, by_column, excess)
    together = torch.cat([part.reshape(-1) for part in parts])  # whole numbers below 2^53: exact in any order
    all_reduce(together, torch.distributed.ReduceOp.SUM, shard_groups(x))
    pieces = torch.split(together, [part.numel() for part in parts])
    by_row, by_column, excess = (piece.reshape(part.shape) for piece, part in zip(pieces, parts, strict=True))
    return LogSums(by_row[0], by_row[1], by_column[0], by_column[1], excess)


def _local_sums(x: Array, ceiling: Array | None) -> LogSums:
    whole = log_bits(x)
    xp = namespace(whole)
    bits = whole if ceiling is None else xp.minimum(whole, ceiling_bits(ceiling))
    cut_off = whole - bits
    if xp is torch:
        found = [bits.sum(axis, keepdim=True, dtype=torch.int64) for axis in (-1, -2)]
        counts = [torch.count_nonzero(bits, axis).unsqueeze(axis) for axis in (-1, -2)]
        excess = cut_off.sum((-2, -1), keepdim=True, dtype=torch.int64)
    else:
        wide = bits.astype(np.int64) if xp is np else double(bits)
        found = [wide.sum(axis, keepdims=True) for axis in (-1, -2)]
        counts = [(bits != 0).sum(axis, keepdims=True) for axis in (-1, -2)]
        excess = (cut_off.astype(np.int64) if xp is np else double(cut_off)).sum((-2, -1), keepdims=True)
    return LogSums(double(found[0]), double(counts[0]), double(found[1]), double(counts[1]), double(excess))


def _or_one(x: Array) -> Array:
    xp = namespace(x)
    return xp.where(x > 0, x, xp.ones_like(x))


def _at_least_one(count: Array) -> Array:
    return namespace(count).clip(count, constant(1.0, count), None)
