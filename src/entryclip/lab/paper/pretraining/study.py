"""Language-model pretraining (Section "Language model pretraining"; `fig:nano_gpt_result`, `fig:lr_sweep`).

All methods train the same model on the same batches from the same weights; they differ in what moves the hidden
matrices. Each is tuned with the same number of trials on one seed, then run with seeds that it was not tuned on.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...engine.study import Piece, Row
from ...lm.train import training_methods as methods
from ...lm.train.divergence import Diverged
from ...lm.train.run import Run
from ...lm.train.settings import Settings
from ..training_runs import TrainingRunsConfig
from .search import best, next_trial, trials_of

POST = ("adamw", "adamw-norm", "post-hard", "post-smooth", "post-smooth-rms")
PRE = ("muon", "spectra", "pre-hard", "pre-smooth")
HEADLINE = ("adamw", "muon", "post-smooth", "pre-smooth", "post-hard", "pre-hard", "spectra")


@dataclass(frozen=True, kw_only=True)
class PretrainingConfig(TrainingRunsConfig):
    """The methods that are compared and how each is tuned; the fields of `TrainingRunsConfig` are common to all runs.

    methods         names in `lab.lm.train.training_methods`; they differ in how the hidden matrices are updated
    rates           the learning rates of the hidden matrices that every search begins with
    level           the clip's quantile or threshold that every search begins with (None: the paper's)
    trials          the number of runs that each method is tuned with, all with the seed `seed`
    tuning_steps    the length of these runs, if shorter than `steps`
    seeds           the number of runs of the tuned method, with the seeds that follow `seed`
    headline_seeds  the same for the methods in HEADLINE

    >>> PretrainingConfig().settings("post-smooth", lr=1e-3, level=0.99, seed=2).batch_tokens
    4096
    """

    methods: tuple[str, ...] = (*POST, *PRE)
    rates: tuple[float, ...] = (4e-3, 8e-3)
    level: float | None = None
    tuning_steps: int = 245
    eval_every: int = 70
    trials: int = 4
    seed: int = 100
    seeds: int = 3
    headline_seeds: int = 5

    @classmethod
    def quick(cls) -> "PretrainingConfig":
        """Four methods on the tiny model, seconds a run: enough to see that it works, too little to compare them."""
        return cls(
            model="tiny",
            methods=("adamw", "post-smooth", "muon", "pre-smooth"),
            rates=(5e-3, 1e-2),
            steps=16,
            tuning_steps=16,
            sequences=4,
            length=64,
            eval_every=4,
            eval_tokens=512,
            trials=2,
            seeds=2,
            headline_seeds=2,
            compile=False,
        )

    def __post_init__(self) -> None:
        for name in self.methods:
            methods.find(name)
        for name in ("rates", "methods"):
            if not getattr(self, name) or len(set(getattr(self, name))) != len(getattr(self, name)):
                raise ValueError(f"{name} must be one or more, each once, got {getattr(self, name)}")
        if self.trials < len(self.rates):
            raise ValueError(f"trials must be at least the {len(self.rates)} rates to begin with, got {self.trials}")
        if self.tuning_steps < 1:
            raise ValueError(f"tuning_steps must be at least 1, got {self.tuning_steps}")
        if self.seeds < 1 or self.headline_seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds} and {self.headline_seeds}")
        for name in self.methods:  # refuses what no run could have, such as a warm-up longer than the tuning
            self.tuning_settings(name, lr=self.rates[0], level=self.level_of(name), seed=self.seed)

    def seeds_of(self, method: str) -> range:
        """The seeds of the reported runs; the method was tuned with none of them."""
        return range(self.seed + 1, self.seed + 1 + (self.headline_seeds if method in HEADLINE else self.seeds))

    def level_of(self, method: str) -> float | None:
        """The clip's level that the search of a method begins with; None for a method without one."""
        own = methods.find(method).level
        return own if self.level is None or own is None else self.level

    def settings(self, method: str, *, lr: float, level: float | None, seed: int) -> Settings:
        """The settings of one reported run."""
        return self.run_settings(method, lr=lr, level=level, seed=seed, eval_every=self.eval_every)

    def tuning_settings(self, method: str, *, lr: float, level: float | None, seed: int) -> Settings:
        """The settings of one run of the tuning, of which only the final loss is used."""
        steps = min(self.tuning_steps, self.steps)
        return self.run_settings(method, lr=lr, level=level, seed=seed, steps=steps)


def units(config: PretrainingConfig) -> list[Piece]:
    """The runs that the tuning of every method begins with."""
    pairs = itertools.product(config.rates, config.methods)
    return [_piece("tuning", method, lr, config.level_of(method), config.seed) for lr, method in pairs]


def next_units(config: PretrainingConfig, rows: Sequence[Row]) -> list[Piece]:
    """The runs that these rows call for: the next trial of each method, then the tuned method with other seeds.

    A method waits for its own trials alone, so rows of other methods may be missing.
    """
    found = []
    for method in config.methods:
        trials = trials_of(method, rows)
        if len(trials) < len(config.rates):
            continue  # the trials it begins with are under way
        if len(trials) < config.trials:
            found.append(_piece("tuning", method, *next_trial(method, trials), config.seed))
        else:
            top = best(trials)
            found += [_piece("report", method, top.lr, top.level, seed) for seed in config.seeds_of(method)]
    return found


def run_unit(config: PretrainingConfig, piece: Piece) -> Iterator[Row]:
    """One run: a row for every evaluation; a run that diverged ends with a row whose losses are None."""
    make = config.tuning_settings if piece["stage"] == "tuning" else config.settings
    settings = make(piece["method"], lr=piece["lr"], level=piece["level"], seed=piece["seed"])
    run, diverged = Run(settings, config.folder()), None
    try:
        run.advance()
    except Diverged as stop:
        diverged = str(stop)
    for i, (row, seconds) in enumerate(zip(run.rows, run.times, strict=True)):
        last = i == len(run.rows) - 1 and not diverged
        yield {**piece, **row, **piece, "seconds": seconds, "last": last, "diverged": None}
    if diverged:
        lost = {"loss": None, "val_loss": None}
        at = {"step": run.trainer.done, "tokens": run.trainer.tokens, "seconds": run.trainer.seconds}
        yield {**piece, **at, **lost, "last": True, "diverged": diverged}


def _piece(stage: str, method: str, lr: float, level: float | None, seed: int) -> Piece:
    return {"stage": stage, "method": method, "lr": lr, "level": level, "seed": seed}
