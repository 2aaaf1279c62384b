"""Noise with separable scales, e_ij = r_i z_ij c_j, clipped at the thresholds t r_i c_j.

Both operators are homogeneous: with s = r_i c_j, phi_{ts}(g + s z) = s phi_t(g/s + z). If |g_ij| <= B r_i c_j, every
entry therefore has the relative bias rho of z at threshold t and bound B, the variance s^2 v and the largest output
s R. In the proofs rho stays, and the sums over equal entries become sums over s:

    ||phi||_F^2 <= sum_ij (s_ij R)^2 = R^2 |r|^2 |c|^2                      in place of R^2 m n,
    E||mean - E mean||_* <= min(|r|_1 |c|, |r| |c|_1) sqrt(v/N)              in place of D r^1.5 sqrt(v/N).

The second holds because a matrix is the sum of its rows, each of which has its length as nuclear norm, and the sum of
its columns. With all scales 1 it is the paper's; it is never above sqrt(min(m, n)) |r| |c|, the paper's step.
"""

import math
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..noise.laws import check_number


class EstimatedScales(Protocol):
    """What `ec.diagnostics.scales` estimates from a matrix: the scale of entry ij is overall * rows_i * columns_j.

    It is known by these names, since the theory does not import the diagnostics, which use it.
    """

    @property
    def overall(self) -> Any:
        """A number, or an array without dimensions."""

    @property
    def rows(self) -> Any:
        """One scale per row, (m,)."""

    @property
    def columns(self) -> Any:
        """One scale per column, (n,)."""


@dataclass(frozen=True)
class Scales:
    """The scales r_i of the rows and c_j of the columns of noise e_ij = r_i z_ij c_j.

    >>> scales = Scales.of([1.0, 3.0], [2.0, 2.0, 1.0])
    >>> round(scales.frobenius**2, 6), round(scales.nuclear, 4)
    (90.0, 12.0)
    """

    rows: tuple[float, ...]
    columns: tuple[float, ...]

    @classmethod
    def of(cls, rows: Iterable[float], columns: Iterable[float]) -> "Scales":
        """Take the scales from two sequences or 1-d arrays, and check that all are finite and above 0."""
        both = _numbers("rows", rows), _numbers("columns", columns)
        for name, values in zip(("row", "column"), both, strict=True):
            for i, value in enumerate(values):
                check_number(f"the scale of {name} {i} (leave {name}s without noise out)", value)
        return cls(*both)

    @classmethod
    def ones(cls, shape: tuple[int, int]) -> "Scales":
        """Return the scales of noise that has the same scale everywhere."""
        return cls((1.0,) * shape[0], (1.0,) * shape[1])

    @property
    def frobenius(self) -> float:
        """The Frobenius norm of the outer product, |r| |c|; sqrt(m n) where all scales are 1."""
        return math.hypot(*self.rows) * math.hypot(*self.columns)

    @property
    def nuclear(self) -> float:
        """The bound on E||x||_* for a matrix x of centred entries with standard deviations r_i c_j."""
        r, c = self.rows, self.columns
        return min(math.fsum(r) * math.hypot(*c), math.hypot(*r) * math.fsum(c))

    def thresholds(self, threshold: float) -> np.ndarray:
        """Return the matrix of the thresholds t r_i c_j."""
        return threshold * np.outer(self.rows, self.columns)


ScaleChoice = tuple[Sequence[float], Sequence[float]] | Scales | EstimatedScales | None


def check_scales(scales: ScaleChoice, shape: tuple[int, int]) -> Scales | None:
    """Convert scales of any kind to `Scales`, and raise an error unless they fit a matrix of that shape."""
    if scales is None:
        return None
    found = Scales.of(*_pair(scales))
    sides = (len(found.rows), len(found.columns))
    if sides != tuple(shape):
        raise ValueError(f"scales must be one per row and one per column of {shape}, got {sides[0]} and {sides[1]}")
    return found


def _pair(scales: Any) -> tuple[Any, Any]:
    """Return the scales of rows and columns as two sequences; an overall scale counts as part of the rows'."""
    if hasattr(scales, "rows") and hasattr(scales, "columns"):
        overall = getattr(scales, "overall", 1.0)
        if batch := tuple(getattr(overall, "shape", ())):
            remedy = "estimate those of one matrix alone, as ec.diagnostics.scales(x[0])"
            raise ValueError(f"scales must be those of one matrix, got those of a batch {batch}: {remedy}")
        return [float(overall) * row for row in _numbers("rows", scales.rows)], scales.columns
    try:
        rows, columns = scales
    except (TypeError, ValueError):
        kinds = "a pair of sequences (r, c), or what ec.diagnostics.scales(x) returns for one matrix x"
        raise TypeError(f"scales must be {kinds}; got one of type {type(scales).__name__}") from None
    return rows, columns


def _numbers(name: str, values: Iterable[float]) -> tuple[float, ...]:
    """Convert the scales of "rows" or "columns" to numbers."""
    shape = getattr(values, "shape", (0,))
    if len(shape) != 1:
        raise ValueError(f"the scales of {name} must be one-dimensional, got shape {tuple(shape)}")
    try:
        return tuple(float(value) for value in values)
    except (TypeError, ValueError):
        raise TypeError(f"the scales of {name} must be a sequence of numbers, got {reprlib.repr(values)}") from None
