"""The arms of the comparison: an `Arm` is a method of changing a noisy gradient, with one setting.

none                        the gradient as it is
hard, smooth                the paper's operators; the setting is the quantile
hard-median, smooth-median  the same operators; the setting is a multiple of the median of |entries|
global                      the norm of the whole matrix is at most the setting
agc                         the norm of each row is at most the setting times that of the weights (Brock et al. 2021)
spam                        entries with g^2 > setting v become sqrt(setting v), v the running mean of their squares
                            (Huang et al. 2025)
posterior                   the posterior mean of each entry, told the noise's law and the size of the clean gradient.
                            It is an oracle: the optimum of one step's squared error over all entry-wise methods. The
                            loss at the end of a run may be lower under another method
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....clip import Clip, hard, smooth
from ....noise import posterior_mean
from ....operators import global_clip, hard_clip, smooth_shrinkage
from ....thresholds import Scale
from .problem import Problem

_AGC_FLOOR = 1e-3  # the norm that a row of weights is taken to have at least
_SPAM_BETA = 0.999


@dataclass(frozen=True)
class Arm:
    """A method and its setting; calling it changes the gradients of a step."""

    method: str
    setting: float | None = None

    def __post_init__(self) -> None:
        if self.method not in ARM_METHODS:
            raise ValueError(f"method must be one of {', '.join(ARM_METHODS)}, got {self.method!r}")

    def __call__(self, step: "GradientStep") -> Tensor:
        return ARM_METHODS[self.method](self.setting, step)


@dataclass
class RunningSquare:
    """SPAM's running mean of squared gradients, with the weight that corrects its start."""

    total: Tensor | None = None
    weight: float = 0.0

    def update_(self, g: Tensor) -> None:
        """Take in a gradient."""
        before = 0 if self.total is None else _SPAM_BETA * self.total
        self.total = (1 - _SPAM_BETA) * g.square() + before
        self.weight = (1 - _SPAM_BETA) + _SPAM_BETA * self.weight


@dataclass(frozen=True)
class GradientStep:
    """What an arm may use at one step; tensors are (learning rates, seeds, d, d)."""

    noisy: Tensor
    clean: Tensor
    weights: Tensor
    problem: Problem
    square: RunningSquare  # kept from step to step


def _none(setting: None, step: GradientStep) -> Tensor:
    return step.noisy


def _clipped(clip: Clip, step: GradientStep) -> Tensor:
    return clip(step.noisy)


def _agc(ratio: float, step: GradientStep) -> Tensor:
    rows, weights = (torch.linalg.vector_norm(x, dim=-1, keepdim=True) for x in (step.noisy, step.weights))
    return step.noisy * (ratio * weights.clamp(min=_AGC_FLOOR) / rows).clamp(max=1)


def _spam(theta: float, step: GradientStep) -> Tensor:
    square, g = step.square, step.noisy
    if square.total is not None:
        g = hard_clip(g, (theta * square.total / square.weight).sqrt())
    square.update_(g)
    return g


def _posterior(setting: None, step: GradientStep) -> Tensor:
    sizes = step.clean.square().mean((-2, -1)).sqrt().clamp(min=1e-6)
    flat, estimates = step.noisy.flatten(0, -3), torch.empty_like(step.noisy.flatten(0, -3))
    for y, size, estimate in zip(flat, sizes.flatten().tolist(), estimates, strict=True):
        if math.isfinite(size):
            estimate.copy_(posterior_mean(y, size, step.problem.noise))  # type: ignore[arg-type]
        else:
            estimate.fill_(math.nan)  # the run has diverged
    return estimates.reshape(step.noisy.shape)


ARM_METHODS: dict[str, Callable[[Any, GradientStep], Tensor]] = {
    "none": _none,
    "hard": lambda q, step: _clipped(hard(q), step),
    "smooth": lambda q, step: _clipped(smooth(q), step),
    "hard-median": lambda kappa, step: _clipped(Clip(hard_clip, Scale(kappa)), step),
    "smooth-median": lambda kappa, step: _clipped(Clip(smooth_shrinkage, Scale(kappa)), step),
    "global": lambda c, step: global_clip(step.noisy, c),
    "agc": _agc,
    "spam": _spam,
    "posterior": _posterior,
}
