"""Gradient descent and spectral gradient descent, many runs at once: (arms, learning rates, seeds) in one tensor.

    post   W <- W - lr clip(noisy gradient)
    pre    W <- W - lr msign(clip(noisy gradient))

A run does not know of the others in its tensor: the rows of a grid are those of its runs made alone, up to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....matrix.sign import msign
from .arms import Arm, GradientStep
from .problem import Problem


@dataclass(frozen=True)
class Losses:
    """The losses of all runs, of shape (arms, learning rates, seeds); inf where a run has diverged."""

    final: np.ndarray
    lowest: np.ndarray
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
) -> Losses:
    """Run all arms at all learning rates from W = 0; `points` are the steps whose losses are kept."""
    w = torch.zeros(len(arms), len(rates), *problem.target.shape)
    lr = torch.tensor(rates)[:, None, None, None]
    lowest = torch.full(w.shape[:3], torch.inf, dtype=torch.float64)
    curve: list[Tensor] = []
    memories: list[dict[str, Any]] = [{} for _ in arms]
    for number, noise in enumerate(problem.noises(steps)):
        clean = problem.gradient(w)
        loss = problem.loss(w, clean)
        lowest = torch.fmin(lowest, loss)
        if number in points:
            curve.append(loss)
        noisy = clean + noise
        update = torch.stack(
            [arm(GradientStep(noisy[i], clean[i], w[i], problem, memories[i])) for i, arm in enumerate(arms)]
        )
        w -= lr * (msign(update, "exact") if stage == "pre" else update)
    final = problem.loss(w, problem.gradient(w))
    if steps in points:
        curve.append(final)
    kept = [_numbers(x) for x in curve]
    shape = (0, *final.shape)
    return Losses(
        _numbers(final), _numbers(torch.fmin(lowest, final)), np.stack(kept) if kept else np.empty(shape), list(points)
    )


def _numbers(loss: Tensor) -> np.ndarray:
    """NaN is a run that has burst, too: it must not win a comparison."""
    return np.nan_to_num(loss.numpy(), nan=np.inf, posinf=np.inf)
