"""The plan of a fused step: what is to be done with each matrix of a param group, whichever backend does it.

The matrices of all bound parameters stand in one table, the clipped ones first. Each clipped matrix has a threshold
that is known before the data is seen, or is a multiple of this step's quantile of |u|, or has to be asked of the rule
once the quantile is there (`ThresholdSource`). A bracket around the last step's quantile tells the backend where to
look; where it misses, the backend finds the quantile in another way: it is always exact.
"""

import enum
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...operators import hard_clip, smooth_shrinkage
from ...quantiles.selection import OPEN, WIDTH
from ..groups import Group, ParameterState
from .binding import ParameterBinding

_NARROWEST = 2**-8  # a bracket is never narrower than this share of the quantile, on either side


class Operator(enum.IntEnum):
    """The operators that a fused step can apply."""

    NONE = 0
    SMOOTH = 1
    HARD = 2


OPERATORS: dict[Any, Operator] = {smooth_shrinkage: Operator.SMOOTH, hard_clip: Operator.HARD}


class ThresholdSource(enum.IntEnum):
    """Where the threshold of a matrix comes from in this step."""

    KNOWN = 0  # `threshold` holds it
    PROPORTIONAL = 1  # `multiple` times the quantile, which the backend applies itself
    AWAITED = 2  # the rule makes it from the quantile: the backend leaves the matrix for `move`


class AdamConstants(NamedTuple):
    """One parameter's numbers of an AdamW step, with u = m / (a sqrt(v) + b) the bias-corrected direction."""

    sign: float  # -1 to maximize
    beta1: float
    fresh1: float  # 1 - beta1
    beta2: float
    fresh2: float  # 1 - beta2
    a: float
    b: float
    decay: float  # the factor on the weights
    lr: float


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


@dataclass
class KernelPlan:
    """All matrices of a group's fused step, and what is to be done with each.

    Arrays have one entry per matrix; those about thresholds and quantiles one per clipped matrix.
    """

    bindings: list[ParameterBinding]
    owner: NDArray[np.int64]  # the binding that a matrix belongs to
    start: NDArray[np.int64]  # its first entry in the parameter
    size: NDArray[np.int64]  # its number of entries
    clipped: int  # how many matrices are clipped: these come first
    operator: Operator = Operator.NONE
    q: float | None = None  # the level of the quantile of the non-zero |u| that is asked for, if any
    propagate: bool = True  # a non-finite u comes out NaN, whatever the operator's limit
    # What changes from step to step.
    gradients: list[Tensor] = field(default_factory=list)  # contiguous fp32, one per binding
    constants: list[AdamConstants] = field(default_factory=list)  # one per binding, or a single one for all
    source: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # of `ThresholdSource`
    threshold: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    multiple: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    has_guess: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    low: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    high: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))


class Quantiles(NamedTuple):
    """A backend's answer: the exact quantile of each clipped matrix, and whether its bracket held it."""

    values: NDArray[np.float64]
    hit: NDArray[np.bool_]


class Backend(Protocol):
    """Something that carries out plans, made for one plan whose per-step fields change."""

    def __init__(self, plan: KernelPlan): ...

    def run(self, plan: KernelPlan) -> Quantiles:
        """Take the gradients into the moments; move every matrix but those whose threshold is awaited.

        Returns the quantiles at level `q` (undefined where `q` is None).
        """
        ...

    def move(self, plan: KernelPlan, rows: NDArray[np.int64], thresholds: NDArray[np.float64]) -> None:
        """Move the matrices `rows` with these thresholds."""
        ...


class FusedStep(Protocol):
    """The fused step of one param group, kept from step to step; nothing of it is saved in a checkpoint."""

    rest: list[Tensor]  # the parameters of the last `bind` that the kernel does not support

    def bind(
        self, params: list[Tensor], weights: list[Tensor], states: list[ParameterState], group: Group
    ) -> list[int]:
        """Make sure that the plan is that of these parameters; returns the positions of those it steps."""
        ...

    def step_(self, gradients: list[Tensor], group: Group) -> None:
        """Step the bound parameters with these gradients, one for each."""
        ...
