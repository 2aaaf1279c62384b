"""The brackets in which the CPU's kernel looks for quantiles: intervals around those of the last step."""

import math

import numpy as np
from numpy.typing import NDArray

from ...quantiles.selection import OPEN, WIDTH

_NARROWEST = 2**-8  # a bracket is never narrower than this share of the quantile, on either side


class Brackets:
    """The interval around each matrix's last quantile in which the next one is looked for."""

    def __init__(self, count: int):
        self.value = np.zeros(count)
        self.width = np.full(count, WIDTH)

    def ends(self, q: float) -> tuple[NDArray[np.bool_], NDArray[np.float32], NDArray[np.float32]]:
        """Return which matrices have a guess, and the lower and upper ends; inf above where few entries lie there."""
        there = (self.value > 0) & (self.value < math.inf)
        value = np.where(there, self.value, 0).astype(np.float32)
        low, high = (side.astype(np.float32) * value for side in (1 - self.width, 1 + self.width))
        return there, low, np.where(q >= OPEN, np.float32(math.inf), high)

    def follow(self, quantiles: NDArray[np.float64], hit: NDArray[np.bool_]) -> None:
        """Take this step's quantiles, and look four times as far around them as they moved of late.

        A narrow bracket keeps few entries where many are alike, as in Adam's first updates.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = np.abs(quantiles / self.value - 1)
        moved = np.where(hit & np.isfinite(moved), moved, WIDTH)
        self.width = np.clip(np.maximum(4 * moved, 0.9 * self.width), _NARROWEST, WIDTH)
        self.value = quantiles
