"""Methods over a fixed grid of learning rates and warm-ups, with nothing searched: every run is known beforehand.

A clip that shrinks the update is also a smaller step, and in the first steps a warm-up. So a method without a clip is
run at several rates and warm-ups too, and each method is compared at the best of its own. That is chosen on seeds that
are not reported: a choice by the reported seeds, even leaving each one out in turn, finds differences that are not
there (of six equal cells and ten seeds in 11 % of the cases, where 2.5 % are meant).

The defaults are the decisive control of AdamW; docs/pretraining.md has the command of that of Muon, and of others.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from ...engine.config_fields import added_field, extent_field
from ...engine.files import checksum
from ...engine.schema import read_json
from ...engine.study import DataSource, Piece, Row
from ...lm.data.manifest import hash_file
from ...lm.train.checkpoint import WEIGHTS, find_latest
from ...lm.train.run import Run
from ...lm.train.settings import Settings
from ..fixed_rates import train_to_end
from ..shards import shards
from ..training_runs import TrainingRunsConfig
from ..typed_rows import TypedRow
from .arms import Arm, clipped_with_tables, parse_arm, split_tables
from .at_the_end import NOT_MEASURED, measured_at_the_end

Stage = Literal["tuning", "report"]
_FINISH = "run its `entryclip train` command again, to its end"


@dataclass(frozen=True, kw_only=True)
class RateGridConfig(TrainingRunsConfig):
    """The methods and their grid; the fields of `TrainingRunsConfig` are common to all runs.

    methods        names in `lab.lm.train.training_methods`, each with its level, rates and warm-ups where these differ
                   from the grid's: post-smooth@0.995/0.0113+0.016/0 (see `arms`)
    rates          the grid's learning rates of the hidden matrices
    warmups        the grid's warm-ups, in steps
    tuning_seeds   the number of seeds by whose mean each method's best rate and warm-up is chosen
    seeds          the number of seeds on which the methods are compared; they follow those of the tuning
    weights        a checkpoint of an `entryclip train` run, or its folder, whose weights all runs begin with, as in
                   fine-tuning (empty: weights of their own, by seed)
    report         whether all cells of the grid are run with these seeds, or each method's best alone
    """

    methods: tuple[str, ...] = extent_field(
        ("adamw", "post-smooth@0.995/0.0113+0.016+0.0226/0", "post-smooth-slope@0.995//0")
    )
    rates: tuple[float, ...] = extent_field((0.008, 0.0113, 0.016))
    warmups: tuple[int, ...] = extent_field((0, 50))
    first_seed: int = extent_field(401)
    tuning_seeds: int = extent_field(3)
    seeds: int = extent_field(10)
    report: Literal["all", "best"] = extent_field("all")
    eval_every: int = 70
    weights: str = added_field("")

    @classmethod
    def quick(cls) -> "RateGridConfig":
        """Four methods on the tiny model for a few steps: enough to see that it works, too little to compare them."""
        return cls(
            model="tiny",
            methods=("adamw", "post-smooth/0.01/0", "muon/0.01/0", "pre-smooth/0.01/0"),
            rates=(0.005, 0.01),
            warmups=(0, 2),
            tuning_seeds=1,
            seeds=2,
            steps=8,
            sequences=4,
            length=64,
            eval_every=4,
            eval_tokens=512,
            compile=False,
        )

    def __post_init__(self) -> None:
        if not self.methods or len(set(self.methods)) != len(self.methods):
            raise ValueError(f"methods must be one or more, each once, got {self.methods}")
        if self.tuning_seeds < 1 or self.seeds < 1:
            raise ValueError(f"tuning_seeds and seeds must be at least 1, got {self.tuning_seeds} and {self.seeds}")
        if self.warmup:
            raise ValueError(f"warmup is one of the grid's fields here: set warmups={self.warmup}")
        cells = self.cells()
        if len(set(cells)) < len(cells):
            raise ValueError(f"two methods of the grid have a run in common, got {self.methods}")
        for cell in cells:
            self.settings(cell, self.first_seed)  # refuses bad values

    def origin(self) -> Path | None:
        """The checkpoint whose weights all runs begin with; a run's folder has to be one that has come to its end."""
        if not self.weights:
            return None
        place = find_latest(Path(self.weights))
        if place != Path(self.weights) and not read_json(Path(self.weights) / "record.json", _FINISH).get("complete"):
            raise ValueError(f"weights must be a finished run or one of its checkpoints, {self.weights} is neither")
        return place

    def arms(self) -> list[Arm]:
        """The methods with their levels, rates and warm-ups."""
        return [parse_arm(text, self.rates, self.warmups) for text in self.methods]

    def cells(self) -> "list[Cell]":
        """All runs of one seed."""
        return [
            Cell(arm.method, arm.level, lr, warmup) for arm in self.arms() for lr in arm.rates for warmup in arm.warmups
        ]

    def seeds_of(self, stage: Stage) -> range:
        """The seeds by which the cells are chosen, or those on which methods are compared."""
        first = self.first_seed + (self.tuning_seeds if stage == "report" else 0)
        return range(first, first + (self.seeds if stage == "report" else self.tuning_seeds))

    def settings(self, cell: "Cell", seed: int) -> Settings:
        """The settings of one run."""
        method, with_tables = split_tables(cell.method)
        settings = self.run_settings(
            method, lr=cell.lr, level=cell.level, seed=seed, warmup=cell.warmup, eval_every=self.eval_every
        )
        return clipped_with_tables(settings) if with_tables else settings


class Cell(NamedTuple):
    """One point of the grid: a method at a level of its clip, a learning rate and a warm-up."""

    method: str  # as an arm names it, with `+tables` where the tables are clipped too
    level: float | None
    lr: float
    warmup: int

    @property
    def arm(self) -> tuple[str, float | None]:
        """The method and its level, which are compared at their best rate and warm-up."""
        return self.method, self.level


@dataclass(frozen=True, kw_only=True)
class RateGridRun(TypedRow):
    """One run: its cell, how it ended, and its validation losses on the way."""

    stage: Stage
    method: str
    level: float | None
    lr: float
    warmup: int
    seed: int
    loss: float | None  # on validation tokens after the last step; None where the run diverged
    diverged: str | None
    tokens: int
    seconds: float  # of training
    eval_steps: list[int]
    eval_losses: list[float]
    band_tokens: list[int]  # these and the rest: see `at_the_end`; empty or None where the run diverged
    band_losses: list[float | None]
    raw_gain: float | None
    standardized_gain: float | None
    spike_score: float | None

    @property
    def cell(self) -> Cell:
        """The point of the grid."""
        return Cell(self.method, self.level, self.lr, self.warmup)

    @property
    def final(self) -> float:
        """The final loss; inf where the run diverged."""
        return math.inf if self.loss is None else self.loss


def data(config: RateGridConfig) -> DataSource:
    """The folder of shards, and a hash of them and of the weights that the runs begin with."""
    found, origin = shards(config), config.origin()
    if origin is None:
        return found
    return DataSource(found.folder, checksum([found.content, hash_file(origin / WEIGHTS)])[:16])


def units(config: RateGridConfig) -> list[Piece]:
    """One unit per cell and seed, seed by seed, those of the tuning first."""
    stages: tuple[Stage, ...] = ("tuning", "report") if config.report == "all" else ("tuning",)
    return [piece for stage in stages for piece in _pieces(config, stage, config.cells())]


def next_units(config: RateGridConfig, rows: Sequence[Row]) -> list[Piece]:
    """The best cells of the tuning with the seeds that are reported, where not all cells are.

    It may be asked early: a method is left out until all of its tuning runs have ended.
    """
    if config.report == "all":
        return []
    tuned = Counter((row["method"], row["level"]) for row in rows if row["stage"] == "tuning")
    wanted = Counter(cell.arm for cell in config.cells() for _ in config.seeds_of("tuning"))
    best = best_cells(rows)
    return _pieces(config, "report", [best[arm] for arm in wanted if tuned[arm] == wanted[arm]])


def run_unit(config: RateGridConfig, piece: Piece) -> Iterator[Row]:
    """Yield the row of one run."""
    cell = Cell(piece["method"], piece["level"], piece["lr"], piece["warmup"])
    run = Run(config.settings(cell, piece["seed"]), config.folder(), weights_from=config.origin())
    losses: list[float] = []
    outcome = train_to_end(run, lambda trainer, loss: losses.append(loss))
    evaluated = [row for row in run.rows if math.isfinite(row["val_loss"])]
    at_the_end = NOT_MEASURED if outcome.loss is None else measured_at_the_end(run.trainer, losses)
    yield RateGridRun(
        **piece,
        **outcome._asdict(),
        tokens=run.trainer.tokens,
        seconds=round(run.trainer.seconds, 3),
        eval_steps=[row["step"] for row in evaluated],
        eval_losses=[row["val_loss"] for row in evaluated],
        **at_the_end,
    ).to_row()


def best_cells(rows: Sequence[Row]) -> dict[tuple[str, float | None], Cell]:
    """The cell of each method and level with the smallest mean loss over the tuning's seeds; ties go to the first."""
    losses: dict[Cell, list[float]] = {}
    for run in RateGridRun.from_rows(rows):
        if run.stage == "tuning":
            losses.setdefault(run.cell, []).append(run.final)
    found: dict[tuple[str, float | None], Cell] = {}
    for cell in sorted(losses, key=lambda cell: math.fsum(losses[cell]) / len(losses[cell])):
        found.setdefault(cell.arm, cell)
    return {cell.arm: found[cell.arm] for cell in losses}


def _pieces(config: RateGridConfig, stage: Stage, cells: Sequence[Cell]) -> list[Piece]:
    return [{"stage": stage, **cell._asdict(), "seed": seed} for seed in config.seeds_of(stage) for cell in cells]
