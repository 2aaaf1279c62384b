"""How the learning rate must change when AdamW's update is clipped: a small network, final loss against learning rate.

Smooth shrinkage shrinks the bulk of the update too, so part of what it does is what a smaller learning rate does. The
control is `preserve_rms=True`. "AdamW (torch)" is our AdamW without a clip, which equals torch's to the bit.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ....clip import Clip, hard, smooth
from ....optim import AdamW

TITLE = "Learning rate and clipping"
CAPTIONS = {
    "learning_rate": "Final test loss of a small network against the learning rate (mean over seeds, band from least "
    "to most). Smooth shrinkage moves the curve to the right by about what it takes from the update's root mean "
    "square; with preserve_rms it falls back on torch's AdamW.",
}
METHODS: dict[str, Clip | None] = {
    "AdamW (torch)": None,
    "hard(.999)": hard(0.999),
    "smooth(.995)": smooth(0.995),
    "smooth(.995), preserve_rms": smooth(0.995, preserve_rms=True),
}


@dataclass(frozen=True)
class Config:
    """What is trained: a student of a random teacher network, on fresh Gaussian inputs."""

    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 2e-2, 3e-2, 4.5e-2, 6.5e-2, 0.1, 0.15, 0.25)
    seeds: int = 5
    steps: int = 300
    width: int = 64

    def __post_init__(self) -> None:
        if not self.rates or not all(0 < rate < math.inf for rate in self.rates):
            raise ValueError(f"rates must be positive and finite, at least one, got {self.rates}")
        if min(self.seeds, self.steps, self.width) < 1:
            raise ValueError(f"seeds, steps and width must be >= 1, got {self.seeds}, {self.steps}, {self.width}")

    @classmethod
    def quick(cls) -> "Config":
        return cls(rates=(1e-2, 3e-2, 6e-2, 0.12, 0.25), seeds=2, steps=100)


def run(config: Config) -> Iterator[dict[str, Any]]:
    """One row per method, learning rate and seed; the same data and start for all methods of a seed."""
    for seed in range(config.seeds):
        for name, clip in METHODS.items():
            for rate in config.rates:
                loss, kept = _train(config, clip, rate, seed)
                yield {"method": name, "lr": rate, "seed": seed, "loss": loss, "rms_kept": kept}


def _train(config: Config, clip: Clip | None, rate: float, seed: int) -> tuple[float, float]:
    """The final test loss, and the share of the update's root mean square that the clip keeps at the last step."""
    data = torch.Generator().manual_seed(seed)
    teacher, student = _network(config.width, data), _network(config.width, data)
    optimizer = AdamW(student.parameters(), lr=rate, weight_decay=0.0, post=clip)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / config.steps)
    for _ in range(config.steps):
        optimizer.zero_grad()
        _loss(student, teacher, torch.randn(64, 16, generator=data)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    kept = mean([row.rms_kept for row in optimizer.clip_report(top=None)]) if clip else 1.0
    with torch.no_grad():
        loss = float(_loss(student, teacher, torch.randn(2048, 16, generator=data)))
    return (loss if math.isfinite(loss) else 1e30), kept  # diverged: larger than anything, and still JSON


def _network(width: int, generator: torch.Generator) -> nn.Module:
    network = nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 8))
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / math.sqrt(p.shape[-1]))
    return network


def _loss(student: nn.Module, teacher: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = teacher(x)
    return (student(x) - y).square().mean()


def plot(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Loss against learning rate, a curve per method."""
    from ...engine.figures import panels

    table = _table(rows)
    figure, (axis,) = panels(1, width=6.5, height=3.8)
    colours = ("#555555", "#1f5fa8", "#c8352b", "#d98c2b")
    for (name, curve), colour, line in zip(table.items(), colours, (":", "--", "-", "-."), strict=True):
        rates = sorted(curve)
        axis.plot(rates, [mean(curve[r]) for r in rates], color=colour, ls=line, lw=2, marker="o", ms=3, label=name)
        axis.fill_between(
            rates, [min(curve[r]) for r in rates], [max(curve[r]) for r in rates], color=colour, alpha=0.12
        )
    axis.set(xscale="log", yscale="log", xlabel="learning rate", ylabel="final test loss")
    axis.legend(frameon=False)
    return {"learning_rate": figure}


def claims(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the docs say about the learning rate, measured."""
    rows = list(rows)
    table = _table(rows)
    best = {name: _optimum(curve) for name, curve in table.items()}
    low = {name: min(mean(losses) for losses in curve.values()) for name, curve in table.items()}
    kept = mean(row["rms_kept"] for row in rows if row["method"] == "smooth(.995)")
    plain, clipped = "AdamW (torch)", "smooth(.995)"
    preserved = best[clipped + ", preserve_rms"]
    return [
        {
            "claim": "smooth(.995) keeps about 60 % of the update's RMS",
            "measured": f"{kept:.0%} at the end of training, mean over runs",
            "holds": bool(0.5 <= kept <= 0.7),
        },
        {
            "claim": "the best learning rate moves up with smooth shrinkage, and not with preserve_rms",
            "measured": f"{best[plain]:.3f} without, {best[clipped]:.3f} with, {preserved:.3f} with preserve_rms",
            "holds": bool(best[clipped] > 1.2 * max(best[plain], preserved)),
        },
        {
            "claim": "on clean data clipping does not help AdamW once each has its best learning rate",
            "measured": f"loss {low[plain]:.3g} without, {low[clipped]:.3g} smooth, {low['hard(.999)']:.3g} hard",
            "holds": bool(low[plain] <= 1.05 * min(low.values())),
        },
    ]


def _optimum(curve: dict[float, list[float]]) -> float:
    """The best learning rate, between the grid's: the vertex of a parabola through the three lowest points, log-log."""
    rates = sorted(curve)
    losses = [math.log(mean(curve[rate])) for rate in rates]
    i = min(range(len(rates)), key=losses.__getitem__)
    if not 0 < i < len(rates) - 1:
        return rates[i]  # on the edge: widen the grid
    x = [math.log(rate) for rate in rates[i - 1 : i + 2]]
    curvature, slope, _ = np.polyfit(x, losses[i - 1 : i + 2], 2)
    return math.exp(-slope / (2 * curvature)) if curvature > 0 else rates[i]


def _table(rows: Iterable[dict[str, Any]]) -> dict[str, dict[float, list[float]]]:
    """Losses by method and learning rate."""
    table: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        table.setdefault(row["method"], {}).setdefault(row["lr"], []).append(row["loss"])
    return table
