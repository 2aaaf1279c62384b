"""How much of the variance of log|x| is due to the rows of a matrix, to its columns, and to single entries.

    log|x_ij| = rows_i + columns_j + rest_ij        over the entries that are not 0

The variances of the three terms are estimated from four sums of squares, those of all logarithms, of the rows' means,
of the columns' means and of the mean of all, which are set equal to their expectations (Henderson 1953, method 1; the
analysis of variance, where no entry is 0). The estimates have no bias, for entries of any law, however few there are in
a row or column: the more scales are found from the same entries, the more of their spread is chance, and that is taken
off. What is left of chance is their scatter, which few entries make large; it is estimated as well.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..arrays import Array, cast, check_floating, constant, to_numpy, widen

UNEVEN = 0.25  # the standard deviation of log(rows * columns) from which on scales are said to differ
_CHANCE = 3.0  # standard errors by which the variance must exceed that, or 0
_KURTOSIS = 4.0  # of log|z|, z Gaussian, beyond that of a normal number
_UNDETERMINED = 1e-9  # determinant, relative to the count of entries, below which the equations have no solution


class VarianceComponents(NamedTuple):
    """The variances of the logarithms of rows, of columns and of the rest, with the standard errors of the first two.

    A variance that is 0 is estimated as a little above or below it. An error is infinite where the variance cannot be
    told, as with a single row; then all variance counts as the rest.
    """

    rows: float
    columns: float
    rest: float  # pi^2 / 8 for Gaussian entries, whatever their scales
    rows_error: float  # for rows and columns of equal scales
    columns_error: float

    @property
    def is_determined(self) -> bool:
        """Whether the variances of rows and columns can be told: not for zeros, nor for a single row or column."""
        return self.rest > 0 and max(self.rows_error, self.columns_error) < math.inf

    @property
    def uneven(self) -> bool:
        """Whether rows and columns differ in scale: the deviation of log(row * column) is above .25, beyond chance."""
        chance = _CHANCE * math.hypot(self.rows_error, self.columns_error)
        return self.rows + self.columns > max(UNEVEN**2, chance)


class _Sums(NamedTuple):
    """Sums over the non-zero entries of a matrix, whose logarithms have mean 0."""

    entries: int
    squares: float  # of all logarithms
    row_sums: np.ndarray  # of logarithms, for the rows with entries
    row_counts: np.ndarray
    column_sums: np.ndarray
    column_counts: np.ndarray
    overlap: float  # the sum of 1 / (entries of its row * entries of its column) over all entries; 1 without zeros


def variance_components(x: Array) -> VarianceComponents:
    """Estimate the variance components of log|x| for one matrix `x`, (m, n), of finite entries.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((200, 300)) * np.exp(0.5 * rng.standard_normal(300))
    >>> found = variance_components(x)
    >>> [round(abs(part), 2) for part in found[:3]], found.uneven  # 0, .25 and pi^2 / 8
    ([0.0, 0.24, 1.21], True)
    >>> variance_components(x[:2, :20]).uneven  # too few entries to tell
    False
    """
    sums = _sums(x)
    if sums.entries == 0:
        return VarianceComponents(0.0, 0.0, 0.0, 0.0, 0.0)
    expected, observed = _equations(sums)
    if abs(np.linalg.det(expected / sums.entries)) < _UNDETERMINED:
        return VarianceComponents(0.0, 0.0, sums.squares / max(sums.entries - 1, 1), math.inf, math.inf)
    inverse = np.linalg.inv(expected)
    rows, columns, rest = (inverse @ observed).tolist()
    scatter = np.sqrt(np.maximum(np.diag(inverse @ _covariance(sums) @ inverse.T), 0)) * max(rest, 0.0)
    return VarianceComponents(rows, columns, rest, *scatter[:2].tolist())


def mean_components(found: Sequence[VarianceComponents]) -> VarianceComponents:
    """Return the mean of the estimates from independent matrices, with its standard errors.

    Matrices that tell nothing of rows and columns, as one with a single row that is not zero, are left out, unless all
    are of that kind.

    >>> rng = np.random.default_rng(0)
    >>> found = [variance_components(rng.standard_normal((m, 30))) for m in (20, 1)]
    >>> mean_components(found) == found[0], mean_components(found[1:]) == found[1]
    (True, True)
    """
    values = np.array([each for each in found if each.is_determined] or found)
    errors = np.sqrt((values[:, 3:] ** 2).sum(0)) / len(values)
    return VarianceComponents(*values[:, :3].mean(0).tolist(), *errors.tolist())


def _sums(x: Array) -> _Sums:
    """Take the sums that the estimates need where `x` lies; only vectors are copied to the host."""
    xp = check_floating(x)
    size = xp.abs(widen(x))
    used = size > 0
    log = xp.log(xp.where(used, size, xp.ones_like(size)))
    counts = [to_numpy(cast(used.sum(axis), log.dtype)).astype(float) for axis in (-1, -2)]
    count = int(counts[0].sum())
    log -= cast(used, log.dtype) * (log.sum() / max(count, 1))
    squares = float(to_numpy((log * log).sum(-1)).astype(float).sum())
    sides = [to_numpy(log.sum(axis)).astype(float) for axis in (-1, -2)]
    overlap = _overlap(cast(used, log.dtype), *counts) if count < math.prod(x.shape) else 1.0
    kept = [(side[number > 0], number[number > 0]) for side, number in zip(sides, counts, strict=True)]
    return _Sums(count, squares, *kept[0], *kept[1], overlap)


def _overlap(used: Array, row_counts: np.ndarray, column_counts: np.ndarray) -> float:
    """Return the sum over the entries of 1 / (entries of its row * entries of its column)."""
    weights = [1 / np.maximum(counts, 1) for counts in (row_counts, column_counts)]
    return float(weights[0] @ to_numpy(used @ constant(weights[1], used)))


def _equations(sums: _Sums) -> tuple[np.ndarray, np.ndarray]:
    """Return the matrix of the expected sums of squares by rows, columns and rest, (3, 3), and the observed sums, (3,).

    The sum of squares of the mean of all is 0 here, and its expectation is taken off the three others.
    """
    n, rows, columns = sums.entries, len(sums.row_counts), len(sums.column_counts)
    mean = np.array([(sums.row_counts**2).sum() / n, (sums.column_counts**2).sum() / n, 1.0])
    observed = [sums.squares]
    observed += [(sums.row_sums**2 / sums.row_counts).sum(), (sums.column_sums**2 / sums.column_counts).sum()]
    return np.array([[n, n, n], [n, rows, rows], [columns, n, columns]]) - mean, np.array(observed)


def _covariance(sums: _Sums) -> np.ndarray:
    """Return the covariance of the observed sums, (3, 3), by chance alone: for logarithms of variance 1.

    That of two quadratic forms is twice the trace of their product, and the excess kurtosis times the sum over their
    diagonals' products, from which the mean of all is left out as small.
    """
    n, rows, columns = sums.entries, len(sums.row_counts), len(sums.column_counts)
    traces = np.array([[n, rows, columns], [rows, rows, sums.overlap], [columns, sums.overlap, columns]])
    own = [float((1 / counts).sum()) for counts in (sums.row_counts, sums.column_counts)]
    diagonals = np.array([[n, rows, columns], [rows, own[0], sums.overlap], [columns, sums.overlap, own[1]]])
    return 2 * (traces - 1) + _KURTOSIS * diagonals
