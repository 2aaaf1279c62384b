"""What the paper says of its figures of the operators, checked on the rows."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...engine.study import Claim, Row
from .study import OperatorPoint


class Curve(NamedTuple):
    """An operator over the grid of entries; each array has one value per entry."""

    x: np.ndarray
    output: np.ndarray
    factor: np.ndarray


class Curves:
    """The curves in a study's rows, by operator and threshold."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._points = OperatorPoint.from_rows(rows)
        self.tau = max(point.threshold for point in self._points)

    def __call__(self, operator: str, threshold: float) -> Curve:
        """The curve of an operator, e.g. `hard_clip`, at a threshold."""
        mine = [p for p in self._points if p.operator == operator and p.threshold == threshold]
        return Curve(*np.array([(point.x, point.output, point.factor) for point in mine]).T)


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the damping factors of hard clipping at tau/e and of smooth shrinkage at tau."""
    curves = Curves(rows)
    tau = curves.tau
    smooth, hard = curves("smooth_shrinkage", tau), curves("hard_clip", tau / math.e)
    x, gap = smooth.x, hard.factor - smooth.factor
    at = int(np.argmin(np.abs(x - tau)))
    away = (x > 0) & (np.arange(len(x)) != at)
    return [
        Claim(
            "at c = tau/e both damping factors are 1/e at |y| = tau",
            f"hard {hard.factor[at]:.6f}, smooth {smooth.factor[at]:.6f}, 1/e = {1 / math.e:.6f}",
            bool(abs(gap[at]) < 1e-12 and abs(smooth.factor[at] - 1 / math.e) < 1e-12),
        ),
        Claim(
            "beyond tau smooth shrinkage damps strictly more",
            f"smallest gap beyond tau {gap[x > x[at]].min():.2e}",
            bool((gap[x > x[at]] > 0).all()),
        ),
        Claim(
            "and so it does at every other y (the paper does not say so)",
            f"smallest gap at y != 0, tau: {gap[away].min():.2e}",
            bool((gap[away] > 0).all()),
        ),
    ]
