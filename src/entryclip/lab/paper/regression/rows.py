"""The rows of a grid of runs: final losses, curves of the best settings, and what these do to the spectrum."""

from collections.abc import Sequence

import numpy as np
import torch

from ....diagnostics import localization, recovery
from ...engine.study import Row
from .arms import Arm, GradientStep, RunningSquare
from .descent import GridLosses, Schedule, descend
from .problem import Problem

_POINTS = 31  # of a convergence curve
_VALUES = 12  # singular values kept of a spectrum


def best_of(rows: list[Row], method: str) -> Row:
    """The row of a method's least median final loss; a run that diverged has None and never wins."""
    mine = [row for row in rows if row["kind"] == "final" and row["method"] == method]
    return min(mine, key=lambda row: np.inf if row["loss"] is None else row["loss"])


def final_rows(losses: GridLosses, arms: Sequence[Arm], rates: Sequence[float]) -> list[Row]:
    """A row for every arm and learning rate: the final loss over the seeds, and the lowest along the run."""
    return [
        {"kind": "final", "method": arm.method, "setting": arm.setting, "lr": lr}
        | _summary(losses.final[i, j])
        | {"lowest": _number(_median(losses.lowest[i, j]))}
        for i, arm in enumerate(arms)
        for j, lr in enumerate(rates)
    ]


def curve_rows(problem: Problem, stage: str, best: Row, steps: int, schedule: Schedule) -> list[Row]:
    """The loss along the run of a method's best setting."""
    points = sorted({round(i * steps / (_POINTS - 1)) for i in range(_POINTS)})
    arms = [Arm(best["method"], best["setting"])]
    found = descend(problem, stage, arms, [best["lr"]], steps, points=points, schedule=schedule)
    return [
        {"kind": "curve", "method": best["method"], "step": step} | _summary(losses[0, 0])
        for step, losses in zip(points, found.curve, strict=True)
    ]


def spectrum_rows(problem: Problem, arms: Sequence[Arm], k: int) -> list[Row]:
    """What each arm makes of the first gradient: its spectrum, its leading subspace, the localization of the error.

    `chance` is what two independent random subspaces of k dimensions in R^d share: k / d.
    """
    noisy = problem.gradient(torch.zeros_like(problem.target)) + next(problem.noises(1))
    clean = problem.gradient(torch.zeros_like(problem.target))
    d = clean.shape[-1]
    k = min(k, d - 1)
    rows: list[Row] = [{"kind": "spectrum", "method": "clean", "values": _spectrum(clean)}]
    for arm in arms:
        step = GradientStep(noisy[None], clean[None], torch.zeros_like(clean)[None], problem, RunningSquare())
        clipped = arm(step)[0]
        scale = (clipped * clean).sum((-2, -1)) / clean.square().sum((-2, -1))  # uniform shrinkage
        found = [recovery(c, g, k) for c, g in zip(clipped, clean, strict=True)]
        ratios = [localization(c - g, g, scales=None).normalized for c, g in zip(clipped, clean, strict=True)]
        rows.append(
            {"kind": "spectrum", "method": arm.method, "setting": arm.setting, "values": _spectrum(clipped)}
            | {"kept": float(np.median([(f.kept_left + f.kept_right) / 2 for f in found]))}
            | {"chance": k / d}
            | {"sine": float(np.median([max(f.left, f.right) for f in found]))}
            | {"r_hat": _number(np.median(ratios)), "gain": float(scale.median())}
        )
    return rows


def _spectrum(x: torch.Tensor) -> list[float]:
    """The leading singular values, medians over the seeds."""
    return [float(s) for s in torch.linalg.svdvals(x).median(0).values[:_VALUES]]


def _summary(losses: np.ndarray) -> Row:
    """Median and quartiles over the seeds."""
    ordered = np.sort(losses)  # inf - inf would make an interpolated median NaN
    low, high = ordered[(ordered.size - 1) // 4], ordered[-1 - (ordered.size - 1) // 4]
    return {"loss": _number(_median(ordered)), "low": _number(low), "high": _number(high)}


def _median(losses: np.ndarray) -> float:
    """The median; with an even number of losses the mean of the middle two, which may be inf."""
    ordered = np.sort(losses)
    return float(ordered[(ordered.size - 1) // 2] / 2 + ordered[ordered.size // 2] / 2)


def _number(x: float | np.floating) -> float | None:
    return float(x) if np.isfinite(x) else None
