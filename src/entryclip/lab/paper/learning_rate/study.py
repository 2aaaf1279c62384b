"""Training runs of a small network under AdamW, with and without clips, over a grid of learning rates and seeds."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean

import torch
from torch import Tensor, nn

from ....clip import Clip, hard, smooth
from ....optim import AdamW
from ...engine.study import Piece, Row
from ..typed_rows import TypedRow

CLIPS: dict[str, Clip | None] = {
    "AdamW (torch)": None,
    "hard(.999)": hard(0.999),
    "smooth(.995)": smooth(0.995),
    "smooth(.995), preserve_rms": smooth(0.995, preserve_rms=True),
}


@dataclass(frozen=True)
class LearningRateConfig:
    """The grid of runs. Each trains a network to imitate a random teacher network on fresh Gaussian inputs."""

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
    def quick(cls) -> "LearningRateConfig":
        """A few seconds: fewer rates, seeds and steps."""
        return cls(rates=(1e-2, 3e-2, 0.1, 0.25), seeds=2, steps=40)


@dataclass(frozen=True, kw_only=True)
class TrainingRun(TypedRow):
    """The result of one training run."""

    method: str  # a key of CLIPS
    lr: float
    seed: int
    loss: float  # on test data after the last step; 1e30 where the run diverged
    rms_kept: float  # share of the update's root mean square that the clip keeps at the last step


def run_unit(config: LearningRateConfig, piece: Piece) -> Iterator[Row]:
    """Yield one row per method, learning rate and seed; the study is one unit, so `piece` is empty.

    All methods of a seed see the same data and start from the same weights.
    """
    for seed in range(config.seeds):
        for name, clip in CLIPS.items():
            for rate in config.rates:
                loss, kept = _train(config, clip, rate, seed)
                yield TrainingRun(method=name, lr=rate, seed=seed, loss=loss, rms_kept=kept).to_row()


def _train(config: LearningRateConfig, clip: Clip | None, rate: float, seed: int) -> tuple[float, float]:
    """Train one network; return the final test loss and the share of the update's root mean square that is kept."""
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
    return (loss if math.isfinite(loss) else 1e30), kept  # JSON has no infinity for a run that diverged


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
