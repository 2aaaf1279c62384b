"""What the documentation says about the learning rate under clipping, checked on the training runs."""

import math
from collections.abc import Sequence
from statistics import mean

import numpy as np

from ...engine.study import Claim, Row
from .study import TrainingRun

LossCurve = dict[float, list[float]]  # the final losses of all seeds, by learning rate


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the best learning rates and the lowest losses of the methods."""
    runs = TrainingRun.from_rows(rows)
    curves = loss_curves(runs)
    best = {name: best_rate(curve) for name, curve in curves.items()}
    low = {name: min(mean(losses) for losses in curve.values()) for name, curve in curves.items()}
    kept = mean(run.rms_kept for run in runs if run.method == "smooth(.995)")
    plain, clipped = "AdamW (torch)", "smooth(.995)"
    preserved = best[clipped + ", preserve_rms"]
    return [
        Claim(
            "smooth(.995) keeps about 60 % of the update's RMS",
            f"{kept:.0%} at the end of training, mean over runs",
            0.5 <= kept <= 0.7,
        ),
        Claim(
            "the best learning rate moves up with smooth shrinkage, and not with preserve_rms",
            f"{best[plain]:.3f} without, {best[clipped]:.3f} with, {preserved:.3f} with preserve_rms",
            best[clipped] > 1.2 * max(best[plain], preserved),
        ),
        Claim(
            "on clean data clipping does not help AdamW once each has its best learning rate",
            f"loss {low[plain]:.3g} without, {low[clipped]:.3g} smooth, {low['hard(.999)']:.3g} hard",
            low[plain] <= 1.05 * min(low.values()),
        ),
    ]


def loss_curves(runs: Sequence[TrainingRun]) -> dict[str, LossCurve]:
    """Group the final losses by method and learning rate."""
    curves: dict[str, LossCurve] = {}
    for run in runs:
        curves.setdefault(run.method, {}).setdefault(run.lr, []).append(run.loss)
    return curves


def best_rate(curve: LossCurve) -> float:
    """Estimate the best learning rate, between the grid's points where the lowest loss lies inside the grid.

    It is the vertex of the parabola through the three lowest points, in the logarithms of rate and loss.
    """
    rates = sorted(curve)
    losses = [math.log(mean(curve[rate])) for rate in rates]
    i = min(range(len(rates)), key=losses.__getitem__)
    if not 0 < i < len(rates) - 1:
        return rates[i]  # at the grid's edge there is no parabola: a wider grid is needed
    x = [math.log(rate) for rate in rates[i - 1 : i + 2]]
    curvature, slope, _ = np.polyfit(x, losses[i - 1 : i + 2], 2)
    return math.exp(-slope / (2 * curvature)) if curvature > 0 else rates[i]
