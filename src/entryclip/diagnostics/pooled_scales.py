"""Scales of rows and columns pooled over several draws of the same noise, as the null of the localization ratio needs.

Scales that are estimated from m x n entries vary by chance also where the true ones are equal, and too large a spread
would make the null too localized. So log-scales are shrunk until their variance is that observed less that of their
sampling error (constrained empirical Bayes, Louis 1984: plain shrinkage to the posterior mean would make the spread too
small). With this p-values are uniform also if the scales come from the one matrix that is tested.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np

from ..arrays import Array, double, to_numpy
from ..quantiles.histogram import Histogram
from ..scales import CLIP, RowColumnScales, row_column_scales

Pair = tuple[np.ndarray, np.ndarray]  # scales of rows, (m,), and of columns, (n,)
ScaleChoice = Pair | Callable[[Array], Pair | None] | None  # given, found from E, or equal for all

_ENTRIES = 2  # non-zero entries for each scale, below which there is nothing to estimate it from
_AT_ONCE = 2**21  # entries worked on at a time


class PooledScales:
    """Running means of the scales of rows and columns over draws: two vectors, whatever the number of draws.

    A row or column that is zero in a draw counts with scale 0 there.

    >>> pooled = PooledScales()
    >>> pooled.add(row_column_scales(np.array([[1.0, -1.0], [4.0, 4.0]])))
    >>> pooled.draws, (pooled.rows[1] / pooled.rows[0]).round(6).item()
    (1, 4.0)
    """

    def __init__(self) -> None:
        self.draws = 0
        self.rows: Array = 0.0  # (m,), from the first draw on
        self.columns: Array = 0.0  # (n,)

    def add(self, found: RowColumnScales) -> None:
        """Add the scales of one draw; its overall scale does not matter."""
        self.draws += 1
        self.rows = self.rows + (found.rows - self.rows) / self.draws
        self.columns = self.columns + (found.columns - self.columns) / self.draws

    def shrunk(self, standardized: Histogram) -> Pair | None:
        """Return the scales without the spread that chance adds; None where there are too few entries for any.

        `standardized` is the histogram of the entries of all draws over the scales of their draw.
        """
        sides = [to_numpy(double(side)) for side in (self.rows, self.columns)]
        used = sum(int(np.count_nonzero(side)) for side in sides)
        if standardized.count - standardized.zeros < _ENTRIES * used * self.draws:
            return None
        return _shrunk(sides[0], standardized), _shrunk(sides[1], standardized)

    def log_variances(self, standardized: Histogram) -> tuple[float, float, float]:
        """Return the variances of log rows, log columns and log|z|, the sampling errors of the first two taken off.

        `standardized` is the histogram of z, the entries of all draws over the scales of their draw.
        """
        low, high, count = standardized.occupied()
        if not count.size:
            return 0.0, 0.0, 0.0
        log = np.log(low * high) / 2
        rest = float(count @ (log - count @ log / count.sum()) ** 2 / count.sum())
        sides = [positive_log(side) for side in (self.rows, self.columns)]
        spread = [max(float(side.var()) - sampling_variance(len(side), standardized), 0.0) for side in sides]
        return spread[0], spread[1], rest


def pooled_scales(E: Array) -> Pair | None:
    """Estimate the scales of rows, (m,), and columns, (n,), from all matrices of `E`, (..., m, n), of any sizes.

    The result is None where there are fewer than two non-zero entries for each scale.

    >>> rng = np.random.default_rng(0)
    >>> rows, columns = pooled_scales(rng.standard_normal((9, 50, 40)) * np.geomspace(1, 9, 40))
    >>> (columns[-1] / columns[0]).round().item(), float(np.ptp(rows)) < 0.05
    (9.0, True)
    """
    pooled, standardized = PooledScales(), Histogram.of(np.zeros(0))
    for part in _parts(E.reshape(-1, *E.shape[-2:])):
        found = row_column_scales(part)
        standardized += Histogram.of(found.standardize(part))
        for each in zip(*found, strict=True):
            pooled.add(RowColumnScales(*each))
    return pooled.shrunk(standardized)


def _parts(x: Array) -> Iterator[np.ndarray]:
    """Yield some matrices of `x`, (count, m, n), at a time, each over its largest entry, in fp64 on the host."""
    step = max(_AT_ONCE // math.prod(x.shape[1:]), 1)
    for start in range(0, len(x), step):
        part = to_numpy(double(x[start : start + step]))
        top = np.abs(part).max((-2, -1), keepdims=True)
        yield part / np.where(top > 0, top, 1)


def _shrunk(side: np.ndarray, standardized: Histogram) -> np.ndarray:
    """Shrink log-scales to their mean so that their variance is the observed one less that of the sampling error."""
    log = positive_log(side)
    mean, variance = log.mean(), log.var()
    error = sampling_variance(len(log), standardized) * (len(log) - 1) / max(len(log), 1)
    factor = math.sqrt(max(1 - error / variance, 0.0)) if variance > 0 else 0.0
    found = np.zeros_like(side)
    found[side > 0] = np.exp(factor * (log - mean))
    return found


def positive_log(side: Array) -> np.ndarray:
    """Return the logarithms of the scales that are not 0."""
    found = to_numpy(double(side))
    return np.log(found[found > 0])


def sampling_variance(count: int, standardized: Histogram) -> float:
    """Return the variance by chance of the log of one of `count` scales, which share the entries of a histogram."""
    return scale_error(standardized) * count / max(standardized.count - standardized.zeros, 1)


def scale_error(standardized: Histogram) -> float:
    """Return n Var(log s), with s the scale of n entries by Huber's estimate: 0.6 for Gaussian ones.

    >>> round(scale_error(Histogram.of(np.random.default_rng(0).standard_normal(10**6))), 2)
    0.6
    """
    low, high, count = standardized.occupied()
    size = np.sqrt(low * high)
    clipped = np.minimum(size, CLIP)
    mean = float(count @ clipped / count.sum())
    slope = float(count @ (size * (size < CLIP)) / count.sum())
    return float(count @ (clipped - mean) ** 2 / count.sum()) / max(slope, 1e-30) ** 2
