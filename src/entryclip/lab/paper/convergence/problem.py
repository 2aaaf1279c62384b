"""A nonconvex objective whose gradient bound B, smoothness L and initial gap Delta are known.

With phi(u) = u^2 / (2 (1 + u^2)),

    f(X) = sum_ij phi((X - W)_ij) + phi(<p q^T, X - W>),    p, q flat unit vectors,

so that L = 2 (|phi''| <= 1, twice), inf f = 0 at X = W, and |G_ij| <= B = 0.325 (1 + 1/sqrt(mn)) for every X.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

SLOPE_LIMIT = math.sqrt(27) / 16  # max |phi'|, at u = 1/sqrt(3)


class Assumptions(NamedTuple):
    """The constants of ass:bounded-main and ass:smooth-main."""

    bound: float  # B: no entry of the gradient exceeds it
    smoothness: float  # L: the Lipschitz constant of the gradient
    gap: float  # Delta: f at the start above its infimum, the largest over the runs


@dataclass(frozen=True)
class Problem:
    """The objective f as a function of Y = X - W, for several runs at once."""

    start: Tensor  # Y at the start, (runs, m, n)

    @classmethod
    def random(cls, runs: int, shape: tuple[int, int], generator: torch.Generator) -> "Problem":
        """Start every entry at distance 1 from its minimum with a random sign, in the nonconvex part of phi."""
        signs = torch.randint(0, 2, (runs, *shape), generator=generator) * 2 - 1
        return cls(signs.double())

    def value(self, y: Tensor) -> Tensor:
        """The objective at `y` of shape (runs, m, n): one number per run."""
        return _phi(y).sum(dim=(-2, -1)) + _phi(self._coupled(y))

    def gradient(self, y: Tensor) -> Tensor:
        """The gradient of the objective at `y`, both of shape (runs, m, n)."""
        return slope(y) + (slope(self._coupled(y)) / self._root)[:, None, None]

    def _coupled(self, y: Tensor) -> Tensor:
        """<p q^T, Y>, one number per run."""
        return y.sum(dim=(-2, -1)) / self._root

    @property
    def _root(self) -> float:
        return math.sqrt(math.prod(self.start.shape[-2:]))

    @property
    def assumptions(self) -> Assumptions:
        """The constants for which the theorems' assumptions hold."""
        bound = SLOPE_LIMIT * (1 + 1 / self._root)
        return Assumptions(bound, smoothness=2.0, gap=float(self.value(self.start).max()))


def slope(u: Tensor) -> Tensor:
    """The derivative of phi, at most SLOPE_LIMIT in absolute value."""
    return u / (1 + u.square()).square()


def _phi(u: Tensor) -> Tensor:
    return u.square() / (2 * (1 + u.square()))
