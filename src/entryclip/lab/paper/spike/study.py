"""A spike replayed: a few corrupted batches in a run of AdamW, and the same steps from one checkpoint under each clip.

The batches are random tokens: what a broken shard is. The run up to them is shared; from the checkpoint before them
every method goes on with the same batches. The paper starts from such spikes (its introduction); this shows what each
clip makes of one, and which entry did it.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ....clip import smooth
from ...lm.data.default_data import data_folder
from ...lm.train.divergence import Diverged
from ...lm.train.run import Run
from ...lm.train.settings import Settings
from ...lm.train.trainer import Trainer
from ...lm.train.training_methods import make_optimizer

TITLE = "A loss spike, replayed under each clip"
CAPTIONS = {
    "spike": "Left: the loss on the batches around the corrupted ones (grey), which every method went through from "
    "the same checkpoint. Right: the update's entries in the matrix where one stands out most, as multiples of their "
    "quantile; the ring is around the entry that stands out.",
}
METHODS = ("adamw", "adamw-norm", "post-hard", "post-smooth", "post-smooth-rms")
Row = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """The run, the step at which it is corrupted, and how long it is watched after it."""

    data: str = ""
    model: Literal["small", "tiny"] = "small"
    lr: float = 8e-3
    other_lr: float = 0.03
    sequences: int = 8
    length: int = 256
    before: int = 150
    after: int = 60
    corrupted: int = 4  # batches, one after the other
    seed: int = 1
    shown: int = 64  # the figure's matrix is a square of at most so many rows around the entry

    @classmethod
    def quick(cls) -> "Config":
        return cls(model="tiny", sequences=4, length=64, before=30, after=15, lr=0.02, shown=32)

    def __post_init__(self) -> None:
        for name, least in (("corrupted", 1), ("shown", 1), ("before", 10), ("after", self.corrupted + 10)):
            if getattr(self, name) < least:  # ten clean steps on either side are compared
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    def settings(self, method: str) -> Settings:
        """Of a run: the learning rate stays as it is, so that only the batch makes a difference."""
        sizes: dict[str, Any] = {"sequences": self.sequences, "length": self.length}
        sizes["eval_tokens"] = self.sequences * self.length
        rates: dict[str, Any] = {"lr": self.lr, "other_lr": self.other_lr, "schedule": "constant"}
        steps = self.before + self.after
        return Settings(
            model=self.model, method=method, steps=steps, eval_every=steps, seed=self.seed, **rates, **sizes
        )

    def folder(self) -> Path:
        """Of the shards."""
        return data_folder(self.data, self.model)


class Corrupted:
    """Batches, some of which are random tokens."""

    def __init__(self, batches: Any, first: int, count: int) -> None:
        self.batches, self.spoiled = batches, range(first, first + count)

    def __next__(self) -> tuple[Tensor, Tensor]:
        position = self.batches.position
        tokens, targets = next(self.batches)
        if position in self.spoiled:
            draw = torch.Generator().manual_seed(position)
            known = int(tokens.max()) + 1
            tokens, targets = (torch.randint(0, known, tokens.shape, generator=draw) for _ in range(2))
        return tokens, targets


def run(config: Config) -> Iterator[Row]:
    """Rows `loss` (method, step, loss) and, once, `entry` (what stands out) and `matrix` (its surroundings)."""
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder)
        base = Run(replace(config.settings("adamw"), steps=config.before), config.folder(), start)
        losses: list[float] = []
        base.advance(lambda trainer, loss: losses.append(loss))
        for method in METHODS:
            yield from (
                {"kind": "loss", "method": method, **_at(i - config.before, loss)} for i, loss in enumerate(losses)
            )
            yield from _branch(config, method, start)


def _at(step: int, loss: float | None, corrupted: bool = False) -> Row:
    return {"step": step, "loss": loss, "corrupted": corrupted}


def _branch(config: Config, method: str, start: Path) -> Iterator[Row]:
    branch = Run(config.settings(method), config.folder(), start_from=start)
    trainer = branch.trainer
    trainer.batches = Corrupted(trainer.batches, config.before, config.corrupted)  # type: ignore[assignment]
    for step in range(config.after):
        try:
            yield {"kind": "loss", "method": method, **_at(step, trainer.step(), step < config.corrupted)}
        except Diverged:
            yield {"kind": "loss", "method": method, **_at(step, None, step < config.corrupted)}
            return
        if step == 0 and method == "adamw":
            yield from _offender(config, trainer)


def _offender(config: Config, trainer: Trainer) -> Iterator[Row]:
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
    yield {
        "kind": "entry",
        "name": worst.name,
        "place": list(worst.place),
        "multiple": worst.largest,
        "text": str(worst),
    }
    values = [[round(float(x), 4) for x in line] for line in part]
    yield {"kind": "matrix", "row": row - top, "column": column - left, "values": values}


def _start(place: int, size: int, shown: int) -> int:
    """Where a window of `shown` around `place` begins."""
    return max(0, min(place - shown // 2, size - shown))


def claims(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """How high the loss went after the corrupted batch, and for how long."""
    last = max(row["step"] for row in rows if row["kind"] == "loss" and row["corrupted"])
    found = {method: _damage(rows, method, last) for method in METHODS}
    bare = found["adamw"]
    made = [
        {
            "claim": "Corrupted batches leave AdamW's loss higher",
            "measured": f"{bare:+.3f} nats above the ten steps before, mean of the ten clean steps after",
            "holds": bare > 0.1,
        }
    ]
    for method in ("post-smooth", "post-hard", "adamw-norm", "post-smooth-rms"):
        measured = f"{found[method]:+.3f} nats against {bare:+.3f} without"
        made.append({"claim": f"{method} makes it less", "measured": measured, "holds": found[method] < bare - 0.01})
    return made


def _damage(rows: Sequence[Row], method: str, last: int) -> float:
    """Mean loss of the ten steps after the corrupted ones less that of the ten before; inf if training broke off."""
    losses = {row["step"]: row["loss"] for row in rows if row["kind"] == "loss" and row["method"] == method}
    after = [losses.get(step) for step in range(last + 1, last + 11)]
    if None in after:
        return float("inf")
    before = [losses[step] for step in range(-10, 0)]
    return float(sum(loss for loss in after if loss is not None) - sum(before)) / 10


def plot(rows: Sequence[Row]) -> dict[str, Any]:
    """`spike`."""
    from ...engine.figures import panels
    from ..pretraining.drawing import LOOK
    from ..pretraining.verdicts import NAMES

    figure, (left, right) = panels(2, width=5.4, height=4.0)
    for method in METHODS:
        those = [row for row in rows if row["kind"] == "loss" and row["method"] == method and row["step"] >= -20]
        left.plot(
            [row["step"] for row in those], [row["loss"] for row in those], label=NAMES[method], lw=1.4, **LOOK[method]
        )
    spoiled = [row["step"] for row in rows if row["kind"] == "loss" and row["corrupted"]]
    left.axvspan(min(spoiled) - 0.5, max(spoiled) + 0.5, color="#dddddd", lw=0)
    left.set(xlabel="steps after the first corrupted batch", ylabel="loss of the step's batch")
    left.legend(frameon=False, fontsize=8)
    (entry,) = [row for row in rows if row["kind"] == "entry"]
    (matrix,) = [row for row in rows if row["kind"] == "matrix"]
    row, column = entry["place"][-2:]
    top, left_edge = row - matrix["row"] - 0.5, column - matrix["column"] - 0.5
    extent = (left_edge, left_edge + len(matrix["values"][0]), top + len(matrix["values"]), top)
    image = right.imshow(matrix["values"], cmap="magma", aspect="auto", extent=extent)
    right.plot([column], [row], "o", ms=12, mfc="none", color="white")
    right.grid(visible=False)
    right.set(xlabel="column", ylabel="row")
    where = f"row {row}, column {column}: {entry['multiple']:.1f} times the quantile"
    right.set_title(f"{entry['name']}\n{where}", fontsize=9)
    figure.colorbar(image, ax=right, label="|update| / its .995 quantile")
    return {"spike": figure}
