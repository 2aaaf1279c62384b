"""A few corrupted batches in a run of AdamW, and the same steps from one checkpoint under each clip.

The corrupted batches are random tokens, as from a broken shard. All methods share the run before them; from the
checkpoint at their start every method goes on with the same batches. The paper's introduction starts from such spikes.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ....clip import smooth
from ...engine.study import Piece, Row
from ...lm.data.default_data import data_folder
from ...lm.train.divergence import Diverged
from ...lm.train.run import Run
from ...lm.train.settings import Settings
from ...lm.train.trainer import Trainer
from ...lm.train.training_methods import make_optimizer

SPIKE_METHODS = ("adamw", "adamw-norm", "post-hard", "post-smooth", "post-smooth-rms")


@dataclass(frozen=True)
class SpikeConfig:
    """The run, the step at which its batches are corrupted, and how long it is watched after that."""

    data: str = ""  # the folder of shards; empty: the Python standard library's source
    model: Literal["small", "tiny"] = "small"
    lr: float = 8e-3
    other_lr: float = 0.03
    sequences: int = 8
    length: int = 256
    before: int = 150  # steps before the first corrupted batch
    after: int = 60  # steps from the first corrupted batch on
    corrupted: int = 4  # batches, one after the other
    seed: int = 1
    shown: int = 64  # the figure's matrix is a square of at most so many rows around the entry

    @classmethod
    def quick(cls) -> "SpikeConfig":
        """The tiny model for a few steps."""
        return cls(model="tiny", sequences=4, length=64, before=30, after=15, lr=0.02, shown=32)

    def __post_init__(self) -> None:
        for name, least in (("corrupted", 1), ("shown", 1), ("before", 10), ("after", self.corrupted + 10)):
            if getattr(self, name) < least:  # ten clean steps on either side are compared
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    def settings(self, method: str) -> Settings:
        """The settings of a run; the learning rate is constant, so that only the batches make a difference."""
        steps = self.before + self.after
        return Settings(
            model=self.model,
            method=method,
            steps=steps,
            eval_every=steps,
            seed=self.seed,
            lr=self.lr,
            other_lr=self.other_lr,
            schedule="constant",
            sequences=self.sequences,
            length=self.length,
            eval_tokens=self.sequences * self.length,
        )

    def folder(self) -> Path:
        """The folder of shards."""
        return data_folder(self.data, self.model)


class CorruptedBatches:
    """An iterator over batches that replaces `count` of them, from the position `first` on, by random tokens."""

    def __init__(self, batches: Any, first: int, count: int) -> None:
        self.batches, self.spoiled = batches, range(first, first + count)

    def __next__(self) -> tuple[Tensor, Tensor]:
        position = self.batches.position
        tokens, targets = next(self.batches)
        if position in self.spoiled:
            draw = torch.Generator().manual_seed(position)
            vocabulary = int(tokens.max()) + 1
            tokens, targets = (torch.randint(0, vocabulary, tokens.shape, generator=draw) for _ in range(2))
        return tokens, targets


def run_unit(config: SpikeConfig, piece: Piece) -> Iterator[Row]:
    """Rows `loss` (method, step, loss) and, once, `entry` (the one that stands out) and `matrix` (around it)."""
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder)
        base = Run(replace(config.settings("adamw"), steps=config.before), config.folder(), start)
        losses: list[float] = []
        base.advance(lambda trainer, loss: losses.append(loss))
        for method in SPIKE_METHODS:
            yield from (_loss(method, i - config.before, loss) for i, loss in enumerate(losses))
            yield from _branch(config, method, start)


def _loss(method: str, step: int, loss: float | None, corrupted: bool = False) -> Row:
    return {"kind": "loss", "method": method, "step": step, "loss": loss, "corrupted": corrupted}


def _branch(config: SpikeConfig, method: str, start: Path) -> Iterator[Row]:
    """Go on from the checkpoint with one method, through the corrupted batches."""
    trainer = Run(config.settings(method), config.folder(), start_from=start).trainer
    trainer.batches = CorruptedBatches(trainer.batches, config.before, config.corrupted)  # type: ignore[assignment]
    for step in range(config.after):
        corrupted = step < config.corrupted
        try:
            yield _loss(method, step, trainer.step(), corrupted)
        except Diverged:
            yield _loss(method, step, None, corrupted)
            return
        if step == 0 and method == "adamw":
            yield from _largest_entry(config, trainer)


def _largest_entry(config: SpikeConfig, trainer: Trainer) -> Iterator[Row]:
    """The entry that stands out most in the update, as `clip_report` names it, and the entries around it."""
    watched = make_optimizer(trainer.model, "post-smooth")
    watched.load_state_dict(trainer.optimizer.state_dict())
    group = watched.param_groups[0]
    group["post"] = smooth(0.995)
    worst = watched.clip_report(1)[0]
    parameter = dict(zip(group["param_names"], group["params"], strict=True))[worst.name]
    state = watched.state[parameter]
    update = (state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-12)).reshape(-1, *parameter.shape[-2:])
    *batch, row, column = worst.place
    matrix = update[batch[0] if batch else 0].abs()
    top, left = (_start(place, size, config.shown) for place, size in zip((row, column), matrix.shape, strict=True))
    part = matrix[top : top + config.shown, left : left + config.shown] / matrix.quantile(0.995)
    place = list(worst.place)
    yield {"kind": "entry", "name": worst.name, "place": place, "multiple": worst.largest, "text": str(worst)}
    values = [[round(float(x), 4) for x in line] for line in part]
    yield {"kind": "matrix", "row": row - top, "column": column - left, "values": values}


def _start(place: int, size: int, shown: int) -> int:
    """The first index of a window of `shown` out of `size` around `place`."""
    return max(0, min(place - shown // 2, size - shown))
