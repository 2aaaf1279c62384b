"""Divide a momentum by the running scales of its rows and columns, before Muon's matrix sign.

The entries of gradients are heavy-tailed because rows and columns differ in scale (docs/scales.md). Where that is so,
one may divide the scales out instead of clipping entries. The two parts below make a `Clip` out of it, which goes where
clips go, although nothing is clipped: the "threshold" is the scale of every entry. They stay in the lab until a study
shows a use for them.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from ....arrays import Array, cast_like, is_number, namespace, wide_dtype, widen
from ....clip import Clip
from ....dtensor import whole
from ....log_scales import log_scales
from ....thresholds import State, Step


@dataclass(frozen=True)
class RunningScales:
    """The scale of every entry, row scale times column scale, (..., m, n): geometric means over the steps.

    beta    how much of the mean of the logarithms is kept; it is freed of its start's bias, this step included

    A matrix of zeros, or one with an entry that is not finite, changes nothing; before any other its scales are 1.
    """

    beta: float = 0.95

    def __post_init__(self) -> None:
        if not (is_number(self.beta) and 0 <= self.beta < 1):
            raise ValueError(f"beta must be a number in [0, 1), got {self.beta!r}")

    @property
    def has_memory(self) -> bool:
        return True

    def init(self, x: Array) -> State:
        """Return the state before the first step: logarithms of row and column scales, of weight 0."""
        if namespace(x) is not torch or x.ndim < 2:
            raise TypeError(f"running scales are of torch matrices, (..., m, n), got shape {tuple(x.shape)}")
        zeros = torch.zeros(x.shape, dtype=wide_dtype(x), device=x.device)
        rows, columns = zeros.sum(-1, keepdim=True), zeros.sum(-2, keepdim=True)
        return {"rows": rows, "columns": columns, "weight": rows.sum(-2, keepdim=True)}

    def __call__(self, x: Array, state: State | None = None, step: Step | None = None) -> tuple[Array, State]:
        if state is None:
            raise ValueError(f"{self} has memory: pass the state that rule.init(x) or the call before returned")
        x = whole(x)
        found = log_scales(x)
        usable = (found.count > 0) & torch.isfinite(x).all(-1, keepdim=True).all(-2, keepdim=True)
        logs = {"rows": found.rows.log(), "columns": found.columns.log(), "weight": torch.ones_like(state["weight"])}
        after = {
            key: torch.where(usable, old.lerp(logs[key].to(old), 1 - self.beta), old) for key, old in state.items()
        }
        weight = torch.where(after["weight"] > 0, after["weight"], math.inf)
        return torch.exp((after["rows"] + after["columns"]) / weight), after

    def __str__(self) -> str:
        return f"running scales, beta={self.beta:g}"


def divide(x: Array, scales: Any) -> Array:
    """Divide each entry by its scale."""
    return cast_like(widen(x) / scales, x)


def standardized(beta: float = 0.95) -> Clip:
    """Return what divides a matrix by its running row and column scales, for the `pre` stage of Muon.

    >>> standardized()
    divide(running scales, beta=0.95)
    """
    return Clip(divide, RunningScales(beta))
