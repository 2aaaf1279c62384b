"""Gradient descent and spectral gradient descent, many runs at once: (arms, learning rates, seeds) in one tensor.

    post   W <- W - lr clip(noisy gradient)
    pre    W <- W - lr msign(clip(noisy gradient))

The learning rate lr is constant, or falls linearly from its first value to 0 at the end of the run.
Runs in one tensor do not depend on each other: each is what it would be alone, up to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ....matrix.sign import msign
from .arms import Arm, GradientStep, RunningSquare
from .problem import Problem

Schedule = Literal["constant", "linear"]


@dataclass(frozen=True)
class GridLosses:
    """The losses of all runs, of shape (arms, learning rates, seeds); inf where a run has diverged."""

    final: np.ndarray
    lowest: np.ndarray  # along the run
    curve: np.ndarray  # (points, arms, learning rates, seeds)
    steps: list[int]  # of the points


@torch.no_grad()
def descend(
    problem: Problem,
    stage: str,
    arms: Sequence[Arm],
    rates: Sequence[float],
    steps: int,
    *,
    points: Sequence[int] = (),
    schedule: Schedule = "constant",
) -> GridLosses:
    """Run all arms at all learning rates from W = 0; `points` are the steps whose losses are kept."""
    w = torch.zeros(len(arms), len(rates), *problem.target.shape)
    lr = torch.tensor(rates)[:, None, None, None]
    lowest = torch.full(w.shape[:3], torch.inf, dtype=torch.float64)
    curve: list[Tensor] = []
    squares = [RunningSquare() for _ in arms]
    for number, noise in enumerate(problem.noises(steps)):
        clean = problem.gradient(w)
        loss = problem.loss(w, clean)
        lowest = torch.fmin(lowest, loss)
        if number in points:
            curve.append(loss)
        noisy = clean + noise
        seen = [GradientStep(noisy[i], clean[i], w[i], problem, squares[i]) for i in range(len(arms))]
        update = torch.stack([arm(step) for arm, step in zip(arms, seen, strict=True)])
        factor = 1 - number / steps if schedule == "linear" else 1.0
        w -= factor * lr * (msign(update, "exact") if stage == "pre" else update)
    final = problem.loss(w, problem.gradient(w))
    if steps in points:
        curve.append(final)
    kept = np.stack([_numbers(loss) for loss in curve]) if curve else np.empty((0, *final.shape))
    return GridLosses(_numbers(final), _numbers(torch.fmin(lowest, final)), kept, list(points))


def _numbers(loss: Tensor) -> np.ndarray:
    """As numpy, with inf in place of NaN: a run that diverged must not win a comparison."""
    return np.nan_to_num(loss.numpy(), nan=np.inf, posinf=np.inf)
