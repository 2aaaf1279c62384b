"""Rules for the norm of all gradients of an optimizer together: how large it may be in a step.

    MaxNorm    at most a fixed number: the usual gradient clipping
    ZScore     at most what its running mean and standard deviation let expect: ZClip (Kumar et al. 2025)

A param group may have such a rule as its option `norm`; `norm_clip` applies it, and keeps what it remembers.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..arrays import is_number

Memory = dict[str, Tensor]  # tensors without dimensions, in fp64 where the device has it


@runtime_checkable
class NormRule(Protocol):
    """The interface of rules for the norm of all gradients."""

    def init(self, total: Tensor) -> Memory: ...

    def limit(self, total: Tensor, memory: Memory) -> tuple[Tensor, Memory]: ...


@dataclass(frozen=True)
class MaxNorm:
    """The norm of all gradients is at most `value`, as `torch.nn.utils.clip_grad_norm_` makes it.

    until    the number of steps after which nothing is clipped any more (default: never); a norm of 0 or one that is
             not finite is not counted
    """

    value: float
    until: int | None = None

    def __post_init__(self) -> None:
        if not (is_number(self.value) and 0 < self.value < math.inf):
            raise ValueError(f"the largest norm must be a positive finite number, got {self.value!r}")
        if self.until is not None and (type(self.until) is not int or self.until < 0):
            raise ValueError(f"until must be a whole number of steps >= 0, or None, got {self.until!r}")

    def init(self, total: Tensor) -> Memory:
        """Return the memory before the first step: no step."""
        return {} if self.until is None else {"steps": torch.zeros_like(total)}

    def limit(self, total: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return the largest norm of this step, and the memory for the next one."""
        value = torch.full_like(total, self.value)
        if self.until is None:
            return value, memory
        steps = memory["steps"]
        usable = (total > 0) & (total < math.inf)
        return torch.where(steps < self.until, value, math.inf), {"steps": torch.where(usable, steps + 1, steps)}


@dataclass(frozen=True)
class ZScore:
    """ZClip's rule (arXiv:2504.02507): a norm whose z-score exceeds a threshold is reduced, the more the larger it is.

    threshold    the z-score from which on a norm n counts as a spike: it becomes mean + threshold^2 / z * deviation
    alpha        how much of the running mean and variance is kept; what enters them is the norm after the clip
    warmup       steps that are not clipped, whose norms give the first mean and variance

    The authors' program can also bound the norm by a constant, 1 unless told otherwise. That is `MaxNorm`; it is left
    out here. A norm of 0 or one that is not finite does not enter the statistics.
    """

    threshold: float = 2.5
    alpha: float = 0.97
    warmup: int = 25

    def __post_init__(self) -> None:
        if not (is_number(self.threshold) and 0 < self.threshold < math.inf):
            raise ValueError(f"the threshold of z-scores must be a positive finite number, got {self.threshold!r}")
        if not (is_number(self.alpha) and 0 <= self.alpha < 1):
            raise ValueError(f"alpha must be a number in [0, 1), got {self.alpha!r}")
        if type(self.warmup) is not int or self.warmup < 2:
            raise ValueError(f"warmup must be a whole number of steps >= 2, a variance needs two, got {self.warmup!r}")

    def init(self, total: Tensor) -> Memory:
        """Return the memory before the first step: no step, mean and variance 0."""
        return {key: torch.zeros_like(total) for key in ("mean", "variance", "steps")}

    def limit(self, total: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return the largest norm of this step, and the memory for the next one."""
        mean, variance, steps = memory["mean"], memory["variance"], memory["steps"]
        is_warm, excess = steps < self.warmup, total - mean
        is_spike = ~is_warm & (variance > 0) & (excess > self.threshold * variance.sqrt())
        limit = torch.where(is_spike, mean + self.threshold**2 * variance / excess, math.inf)
        kept = torch.minimum(total, limit)
        # Welford's formulas during the warm-up, exponential averages afterwards.
        next_mean = torch.where(is_warm, mean + excess / (steps + 1), mean + (1 - self.alpha) * (kept - mean))
        gathered = (steps * variance + excess * (total - next_mean)) / (steps + 1)
        averaged = self.alpha * variance + (1 - self.alpha) * (kept - next_mean).square()
        usable = (total > 0) & (total < math.inf)
        following = {"mean": next_mean, "variance": torch.where(is_warm, gathered, averaged), "steps": steps + 1}
        return limit, {key: torch.where(usable, value, memory[key]) for key, value in following.items()}
