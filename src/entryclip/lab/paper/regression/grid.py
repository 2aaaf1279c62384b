"""From a unit of work to its rows: the grid, the best of each method, and what that one does to the spectrum."""

from typing import Any

import numpy as np
import torch

from ....diagnostics import localization, recovery
from .arms import Arm, Step
from .config import PAPER, Config
from .descent import Outcome, descend
from .problem import Problem, make_noise

_POINTS = 31  # of a convergence curve
_VALUES = 12  # singular values kept of a spectrum


def run_unit(config: Config, unit: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of kind `final` for every arm and learning rate; for the paper's methods also `curve` and `spectrum`."""
    noise = make_noise(unit["noise"], unit["level"], config.sigma, config.nu, config.scale)
    problem = Problem.draw(unit["d"], unit["n"], tuple(range(config.seeds)), noise)
    paper = unit["part"] == "paper"
    arms = config.paper_arms() if paper else config.free_arms(unit["noise"])
    rates = config.rates if paper else config.free_rates
    rows = _finals(descend(problem, unit["stage"], arms, rates, config.steps), arms, rates)
    if paper:
        best = {method: best_of(rows, method) for method in PAPER}
        rows += [row for method in PAPER for row in _curve(problem, unit["stage"], best[method], config.steps)]
        rows += _spectra(problem, [Arm(m, best[m]["setting"]) for m in PAPER], config.k)
    return [{**{key: unit[key] for key in ("part", "d", "stage", "noise", "level")}, **row} for row in rows]


def best_of(rows: list[dict[str, Any]], method: str) -> dict[str, Any]:
    """The setting and learning rate of the least median final loss; a run that burst has None and never wins."""
    mine = [row for row in rows if row["kind"] == "final" and row["method"] == method]
    return min(mine, key=lambda row: np.inf if row["loss"] is None else row["loss"])


def _finals(outcome: Outcome, arms: list[Arm], rates: tuple[float, ...]) -> list[dict[str, Any]]:
    return [
        {"kind": "final", "method": arm.method, "setting": arm.setting, "lr": lr}
        | _summary(outcome.final[i, j])
        | {"lowest": _number(_median(outcome.lowest[i, j]))}
        for i, arm in enumerate(arms)
        for j, lr in enumerate(rates)
    ]


def _curve(problem: Problem, stage: str, best: dict[str, Any], steps: int) -> list[dict[str, Any]]:
    """The loss along the run of a method's best setting."""
    points = sorted({round(i * steps / (_POINTS - 1)) for i in range(_POINTS)})
    outcome = descend(problem, stage, [Arm(best["method"], best["setting"])], [best["lr"]], steps, points=points)
    return [
        {"kind": "curve", "method": best["method"], "step": step} | _summary(losses[0, 0])
        for step, losses in zip(points, outcome.curve, strict=True)
    ]


def _spectra(problem: Problem, arms: list[Arm], k: int) -> list[dict[str, Any]]:
    """At the first step, where all methods see the same gradient: its spectrum, its subspace, where the error sits."""
    noisy = problem.gradient(torch.zeros_like(problem.target)) + next(problem.noises(1))
    clean = problem.gradient(torch.zeros_like(problem.target))
    rows: list[dict[str, Any]] = [{"kind": "spectrum", "method": "clean", "values": _spectrum(clean)}]
    for arm in arms:
        step = Step(noisy[None], clean[None], torch.zeros_like(clean)[None], problem, {})
        clipped = arm(step)[0]
        scale = (clipped * clean).sum((-2, -1)) / clean.square().sum((-2, -1))  # shrinking all alike is a learning rate
        found = [recovery(c, g, min(k, len(g) - 1)) for c, g in zip(clipped, clean, strict=True)]
        ratios = [localization(c - g, g).normalized for c, g in zip(clipped, clean, strict=True)]
        rows.append(
            {"kind": "spectrum", "method": arm.method, "setting": arm.setting, "values": _spectrum(clipped)}
            | {"kept": float(np.median([(f.kept_left + f.kept_right) / 2 for f in found]))}
            | {"sine": float(np.median([max(f.left, f.right) for f in found]))}
            | {"r_hat": _number(np.median(ratios)), "gain": float(scale.median())}
        )
    return rows


def _spectrum(x: torch.Tensor) -> list[float]:
    """The leading singular values, medians over the seeds."""
    return [float(s) for s in torch.linalg.svdvals(x).median(0).values[:_VALUES]]


def _summary(losses: np.ndarray) -> dict[str, Any]:
    """Median and quartiles over the seeds."""
    ordered = np.sort(losses)  # inf - inf would make an interpolated median NaN
    low, high = ordered[(ordered.size - 1) // 4], ordered[-1 - (ordered.size - 1) // 4]
    return {"loss": _number(_median(ordered)), "low": _number(low), "high": _number(high)}


def _median(losses: np.ndarray) -> float:
    """Of an even number the mean of the middle two, which may be inf."""
    ordered = np.sort(losses)
    return float(ordered[(ordered.size - 1) // 2] / 2 + ordered[ordered.size // 2] / 2)


def _number(x: Any) -> float | None:
    return float(x) if np.isfinite(x) else None
