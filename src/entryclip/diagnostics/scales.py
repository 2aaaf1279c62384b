"""Do the rows and columns of a matrix differ in scale, and what is left of its tails when that is divided out?

    x_ij = overall * rows_i * columns_j * z_ij        the scales by `entryclip.scales`: a spike hardly moves them

The logarithm of |x_ij| is then a sum, and its variance that of three terms. For Gaussian entries the last, the variance
of log|z|, is pi^2 / 8, whatever their scale; heavy tails make it larger (Cauchy entries: pi^2 / 4).
"""

import math
from dataclasses import dataclass, field

import numpy as np

from ..arrays import Array, check_floating, double, to_numpy
from ..quantiles.histogram import Histogram
from ..scales import CLIP, ROUNDS, row_column_scales

GAUSSIAN_VARIANCE = math.pi**2 / 8  # of log|z|, z Gaussian


@dataclass(frozen=True)
class Scales:
    """Scales of the rows and columns of matrices x, (..., m, n); `print` it for their share in the variance of log|x|.

    Where a row or column is zero, so is its scale; its entries are left out of all shares.
    """

    overall: np.ndarray  # (...): the standard deviation of a Gaussian entry in a row and column of scale 1
    rows: np.ndarray  # (..., m), with geometric mean 1
    columns: np.ndarray  # (..., n), with geometric mean 1
    standardized: np.ndarray = field(repr=False)  # (..., m, n): x over its scales
    variance: np.ndarray  # (..., 3): of log rows, log columns and log|standardized|, without their sampling errors

    @property
    def share(self) -> np.ndarray:
        """The shares of rows, columns and the rest in the variance of log|x|, (..., 3); they add up to 1."""
        return self.variance / np.maximum(self.variance.sum(-1, keepdims=True), 1e-300)

    def __str__(self) -> str:
        count = self.overall.size
        share, rest = np.median(self.share.reshape(count, 3), 0), float(np.median(self.variance[..., 2]))
        of = "" if count == 1 else f", median of {count} matrices"
        words = ", ".join(f"{name} {part:.0%}" for name, part in zip(("rows", "columns", "rest"), share, strict=True))
        return f"variance of log|x|: {words}; the rest is {rest:.3g} (Gaussian entries: {GAUSSIAN_VARIANCE:.3g}){of}"


def scales(x: Array, *, rounds: int = ROUNDS) -> Scales:
    """Estimate the scales of the rows and columns of each matrix of `x`, (..., m, n), in fp64 on the host.

    `rounds` is how many times rows and columns are estimated in turn.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((256, 384)) * np.exp(0.5 * rng.standard_normal(384))
    >>> x[3, 5] = 1e6
    >>> found = scales(x)
    >>> print(found)
    variance of log|x|: rows 0%, columns 18%, rest 82%; the rest is 1.22 (Gaussian entries: 1.23)
    >>> found.standardized.shape, bool(found.rows[3] < 1.2)
    ((256, 384), True)
    """
    values = finite_batch(x)
    top = np.abs(values).max((-2, -1))  # so that nothing overflows on the way
    unit = values / np.where(top > 0, top, 1)[..., None, None]
    overall, rows, columns = found = row_column_scales(unit, rounds)
    standardized = found.standardize(unit)
    flat = standardized.reshape(-1, *values.shape[-2:])
    sides = zip(rows.reshape(len(flat), -1), columns.reshape(len(flat), -1), flat, strict=True)
    variance = np.array([log_variances(r, c, Histogram.of(z)) for r, c, z in sides])
    return Scales(overall * top, rows, columns, standardized, variance.reshape(*values.shape[:-2], 3))


def finite_batch(x: Array) -> np.ndarray:
    """Return `x` in fp64 on the host; raise an error unless it is one or several matrices of finite numbers."""
    check_floating(x)
    if x.ndim < 2 or 0 in x.shape:
        raise ValueError(f"x must have matrices with entries in them, (..., m, n), got shape {tuple(x.shape)}")
    values = to_numpy(double(x))
    if bad := int(np.count_nonzero(~np.isfinite(values))):
        raise ValueError(f"x has {bad} entries that are NaN or infinite, which have no scale: remove them first")
    return values


def log_variances(rows: Array, columns: Array, standardized: Histogram) -> tuple[float, float, float]:
    """Return the variances of log rows, log columns and log|z|, the sampling errors of the first two taken off.

    `standardized` is the histogram of z, the entries over their scales; of all matrices, where scales are averages.
    """
    low, high, count = standardized.occupied()
    if not count.size:
        return 0.0, 0.0, 0.0
    log = np.log(low * high) / 2
    rest = float(count @ (log - count @ log / count.sum()) ** 2 / count.sum())
    sides = [positive_log(side) for side in (rows, columns)]
    spread = [max(float(side.var()) - sampling_variance(len(side), standardized), 0.0) for side in sides]
    return spread[0], spread[1], rest


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
