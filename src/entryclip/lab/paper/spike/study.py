"""A few corrupted batches in a run, and the same steps from one checkpoint under each clip.

All methods on one optimizer share the run before the corrupted batches, without a clip; from the checkpoint at their
start every method goes on with the same batches. Only those that judge a gradient by the ones before, `auto()` and most
of the methods that others published, act from the first step of a run of their own. The paper's introduction starts
from such spikes.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...engine.config_fields import added_field, extent_field
from ...engine.study import Piece, Row
from ...lm.data.default_data import data_folder
from ...lm.train import training_methods
from ...lm.train.divergence import Diverged
from ...lm.train.run import Run
from ...lm.train.settings import Settings
from ..lm_methods import PUBLISHED
from ..typed_rows import TypedRow
from .corruption import BATCH_CORRUPTIONS, CorruptedBatches
from .largest_entry import largest_entry

ON_ADAMW = ("adamw", "adamw-norm", "post-hard", "post-smooth", "post-smooth-rms", "adamw-auto", "post-auto")
ON_MUON = ("muon", "muon-norm", "pre-hard", "pre-smooth", "muon-auto", "pre-auto")
WATCHED = 10  # clean steps on either side of the corrupted ones that are compared
_BASES = ("adamw", "muon")  # the method without a clip, by the name of its optimizer


@dataclass(frozen=True)
class SpikeConfig:
    """The run, the step at which its batches are corrupted, and how long it is watched after that.

    corruptions   what happens to the batches. `random`: tokens and targets are random, as from a broken shard; this one
                  was chosen because it spiked most in a first look at the tiny model. `shuffled`: the targets of the
                  batch are in a random order, as of labels that went astray. This one was not chosen for its effect:
                  it spiked less in that first look, and model, steps, number of batches, methods and measures were
                  declared before it was run with them. Whatever comes of it is reported.
    lr            the learning rate of the hidden matrices with AdamW: the best of a few for so many steps at a constant
                  rate, without a clip and without corruption (results/spike-rates)
    muon_lr       the same with Muon
    before        steps before the first corrupted batch
    after         steps from the first corrupted batch on
    corrupted     the number of corrupted batches, one after the other
    seed          the first seed
    shown         the figure's matrix is a square of at most so many rows around the entry that stands out
    precision     fp32, or bf16: the model's matrix products under autocast
    """

    data: str = ""  # the folder of shards; empty: the Python standard library's source
    model: Literal["small", "tiny"] = "small"
    methods: tuple[str, ...] = extent_field((*ON_ADAMW, *ON_MUON, *PUBLISHED))
    corruptions: tuple[str, ...] = ("random", "shuffled")
    lr: float = 0.001
    muon_lr: float = 0.004
    other_lr: float = 0.03
    sequences: int = 8
    length: int = 256
    before: int = 120
    after: int = 30
    corrupted: int = 4
    seed: int = 1
    seeds: int = extent_field(3)
    shown: int = 64
    precision: Literal["fp32", "bf16"] = added_field("fp32")

    @classmethod
    def quick(cls) -> "SpikeConfig":
        """The tiny model for a few steps, six methods."""
        return cls(
            model="tiny",
            methods=("adamw", "post-smooth", "adamw-auto", "muon", "pre-smooth", "pre-auto"),
            lr=0.02,
            muon_lr=0.02,
            sequences=4,
            length=64,
            before=30,
            after=15,
            seeds=2,
            shown=32,
        )

    def __post_init__(self) -> None:
        least = {"corrupted": 1, "shown": 1, "seeds": 1, "before": WATCHED, "after": self.corrupted + WATCHED}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ValueError(f"{name} must be at least {bound}, got {getattr(self, name)}")
        for names, known in ((self.corruptions, BATCH_CORRUPTIONS), (self.methods, training_methods.TRAINING_METHODS)):
            if not names or len(set(names)) != len(names) or not set(names) <= set(known):
                raise ValueError(f"choose one or more of {', '.join(known)}, each once, got {names}")
        for base in self.bases():
            if base not in self.methods:
                raise ValueError(f"methods on {base} are compared with {base}: add it to methods, got {self.methods}")

    def bases(self) -> list[str]:
        """The optimizers without a clip, which the methods stand on."""
        there = {training_methods.find(method).optimizer for method in self.methods}
        return [base for base in _BASES if base in there]

    def starts(self) -> dict[str, list[str]]:
        """The methods that go on from a common checkpoint, by the method of the run to it."""
        found: dict[str, list[str]] = {}
        for method in self.methods:
            known = training_methods.find(method)
            found.setdefault(method if known.judges_by_the_past else known.optimizer, []).append(method)
        return found

    def settings(self, method: str, seed: int) -> Settings:
        """The settings of a run; the learning rate is constant, so that only the batches make a difference."""
        steps = self.before + self.after
        return Settings(
            model=self.model,
            method=method,
            steps=steps,
            eval_every=steps,
            seed=seed,
            lr=self.lr if training_methods.find(method).optimizer == "adamw" else self.muon_lr,
            other_lr=self.other_lr,
            schedule="constant",
            sequences=self.sequences,
            length=self.length,
            eval_tokens=self.sequences * self.length,
            precision=self.precision,
        )

    def folder(self) -> Path:
        """The folder of shards."""
        return data_folder(self.data, self.model)


@dataclass(frozen=True, kw_only=True)
class SpikeLoss(TypedRow):
    """The loss of one step of a run after the checkpoint, on its own batch; None where the run diverged."""

    kind: str = "loss"
    start: str  # the method of the run to the checkpoint
    base: str  # the method without a clip
    method: str
    corruption: str
    seed: int
    step: int  # 0 is the first corrupted batch
    loss: float | None
    corrupted: bool


@dataclass(frozen=True, kw_only=True)
class SpikeHistory(TypedRow):
    """The loss of one step before the checkpoint, which all methods with the same start share."""

    kind: str = "before"
    start: str
    seed: int
    step: int  # below 0
    loss: float


def units(config: SpikeConfig) -> list[Piece]:
    """A unit for every seed and start: the run to the checkpoint, and all that goes on from there."""
    return [
        {"start": start, "methods": "+".join(methods), "seed": config.seed + i}
        for i in range(config.seeds)
        for start, methods in config.starts().items()
    ]


def run_unit(config: SpikeConfig, piece: Piece) -> Iterator[Row]:
    """Rows `before` and `loss` and, once, `entry` (the one that stands out) and `matrix` (around it)."""
    start, seed = piece["start"], piece["seed"]
    branches = [(method, corruption) for corruption in config.corruptions for method in piece["methods"].split("+")]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder)
        run = Run(config.settings(start, seed), config.folder(), checkpoint)  # of the branches' length: one schedule
        for i in range(config.before):
            try:
                loss = run.trainer.step()
            except Diverged:
                yield from [_lost(start, seed, method, corruption).to_row() for method, corruption in branches]
                return
            yield SpikeHistory(start=start, seed=seed, step=i - config.before, loss=loss).to_row()
        run.save()
        for method, corruption in branches:
            yield from _branch(config, start, seed, method, corruption, checkpoint)


def _lost(start: str, seed: int, method: str, corruption: str) -> SpikeLoss:
    """The row of a method whose run diverged before the corrupted batches."""
    base = training_methods.find(method).optimizer
    labels: Piece = {"start": start, "seed": seed, "base": base, "method": method, "corruption": corruption}
    return SpikeLoss(**labels, step=0, loss=None, corrupted=True)


def _branch(
    config: SpikeConfig, start: str, seed: int, method: str, corruption: str, checkpoint: Path
) -> Iterator[Row]:
    """Go on from the checkpoint with one method, through the corrupted batches."""
    base = training_methods.find(method).optimizer
    trainer = Run(config.settings(method, seed), config.folder(), start_from=checkpoint).trainer
    corrupt, vocabulary = BATCH_CORRUPTIONS[corruption], trainer.config.vocabulary
    batches = CorruptedBatches(trainer.batches, corrupt, config.before, config.corrupted, vocabulary, seed=seed)
    trainer.batches = batches  # type: ignore[assignment]
    for step in range(config.after):
        loss: float | None
        try:
            loss = trainer.step()
        except Diverged:
            loss = None
        is_corrupted = step < config.corrupted
        labels: Piece = {"start": start, "seed": seed, "base": base, "method": method, "corruption": corruption}
        yield SpikeLoss(**labels, step=step, loss=loss, corrupted=is_corrupted).to_row()
        if loss is None:
            return
        if (step, method, corruption, seed) == (0, "adamw", config.corruptions[0], config.seed):
            yield from largest_entry(trainer, config.shown)
