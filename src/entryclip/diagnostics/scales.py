"""Do the rows and columns of a matrix differ in scale, and what is left of its tails when that is divided out?

    x_ij = overall * rows_i * columns_j * z_ij        the scales by `entryclip.scales`: a spike hardly moves them

The logarithm of |x_ij| is then a sum, and its variance that of three terms (variance_components.py). For Gaussian
entries the last, the variance of log|z|, is pi^2 / 8, whatever their scale; heavy tails make it larger (Cauchy entries:
pi^2 / 4).
"""

import math
from dataclasses import dataclass

import numpy as np

from ..arrays import Array, check_floating, double, to_numpy
from ..scales import ROUNDS, row_column_scales
from .variance_components import variance_components

GAUSSIAN_VARIANCE = math.pi**2 / 8  # of log|z|, z Gaussian
_NOTED = 0.02  # a share that chance alone may give, from which on the printed line mentions it


@dataclass(frozen=True, repr=False)
class Scales:
    """Scales of the rows and columns of matrices x, (..., m, n); `print` it for their share in the variance of log|x|.

    Where a row or column is zero, so is its scale; its entries are left out of all shares. But for the cut at 0 the
    shares have no bias, however few entries there are, but few scatter: `error` says by how much, and the printed line
    where that matters. With a single row, or one entry in each, scales cannot be told from entries: all variance then
    counts as the rest.
    """

    overall: np.ndarray  # (...): the standard deviation of a Gaussian entry in a row and column of scale 1
    rows: np.ndarray  # (..., m), with geometric mean 1
    columns: np.ndarray  # (..., n), with geometric mean 1
    standardized: np.ndarray  # (..., m, n): x over its scales
    variance: np.ndarray  # (..., 3): the parts of rows, columns and the rest in the variance of log|x|
    error: np.ndarray  # (..., 2): standard errors of the first two, for rows and columns of equal scales

    @property
    def share(self) -> np.ndarray:
        """The shares of rows, columns and the rest in the variance of log|x|, (..., 3); they add up to 1."""
        return self.variance / np.maximum(self.variance.sum(-1, keepdims=True), 1e-300)

    def __str__(self) -> str:
        count, rest = self.overall.size, float(np.median(self.variance[..., 2]))
        of = "" if count == 1 else f", median of {count} matrices"
        parts = (
            f"variance of log|x|: {self._shares()}; the rest is {rest:.3g} (Gaussian entries: {GAUSSIAN_VARIANCE:.3g})"
        )
        return parts + self._chance() + of

    def __repr__(self) -> str:
        return f"<Scales of {self.standardized.shape}: {self._shares()} of the variance of log|x|>"

    def _shares(self) -> str:
        """Return the median shares over the matrices in words."""
        share = np.median(self.share.reshape(-1, 3), 0)
        return ", ".join(f"{name} {part:.0%}" for name, part in zip(("rows", "columns", "rest"), share, strict=True))

    def _chance(self) -> str:
        """Return what shares equal scales may show by chance, two standard errors, where that is no small part."""
        total = np.maximum(self.variance.sum(-1, keepdims=True), 1e-300)
        rows, columns = np.median((2 * self.error / total).reshape(-1, 2), 0)
        if math.isinf(rows + columns):
            return "; too few entries in a row or column to tell its scale from them"
        return f"; by chance rows up to {rows:.0%}, columns up to {columns:.0%}" if max(rows, columns) > _NOTED else ""


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
    components = np.array([variance_components(each) for each in unit.reshape(-1, *values.shape[-2:])])
    components = components.reshape(*values.shape[:-2], 5)
    variance, error = np.maximum(components[..., :3], 0), components[..., 3:]
    return Scales(overall * top, rows, columns, standardized, variance, error)


def finite_batch(x: Array) -> np.ndarray:
    """Return `x` in fp64 on the host; raise an error unless it is one or several matrices of finite numbers."""
    check_floating(x)
    if x.ndim < 2 or 0 in x.shape:
        raise ValueError(f"x must have matrices with entries in them, (..., m, n), got shape {tuple(x.shape)}")
    values = to_numpy(double(x))
    if bad := int(np.count_nonzero(~np.isfinite(values))):
        raise ValueError(f"x has {bad} entries that are NaN or infinite, which have no scale: remove them first")
    return values
