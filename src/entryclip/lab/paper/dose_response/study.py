"""Short runs of the language model whose hidden matrices get corrupted gradients, under each clip.

One unit is one method, corruption, rate and seed. All methods of a seed have the same weights, batches and places of
corruption, and train at the rate that is best without corruption and without a clip.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ...engine.config_fields import extent_field
from ...engine.study import Piece, Row
from ...lm.train.run import Run
from ...lm.train.subnormals import subnormals_flushed
from ..fixed_rates import FixedRateConfig, train_to_end
from ..lm_methods import PUBLISHED
from ..typed_rows import TypedRow
from .corruption import CLEAN, CORRUPTIONS, GradientCorruption

ON_ADAMW = ("adamw", "adamw-norm", "adamw-hard", "adamw-smooth", "post-hard", "post-smooth", "adamw-auto", "post-auto")
ON_MUON = ("muon", "muon-norm", "pre-hard", "pre-smooth", "muon-auto", "pre-auto")


@dataclass(frozen=True, kw_only=True)
class DoseConfig(FixedRateConfig):
    """The methods, and the doses: the share of the hidden matrices' gradient entries that is corrupted in each step.

    rates   the doses above 0; every method is also run without corruption

    With 1024 tokens a step AdamW's best learning rate is half of what it is with 4096 (results/dose-response-rates).
    """

    methods: tuple[str, ...] = extent_field((*ON_ADAMW, *ON_MUON, *PUBLISHED))
    corruptions: tuple[str, ...] = extent_field(("cauchy", "bits"))
    rates: tuple[float, ...] = extent_field((1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2))
    adamw_lr: float = 0.004
    steps: int = 120
    sequences: int = 4
    seeds: int = extent_field(3)

    def __post_init__(self) -> None:
        super().__post_init__()
        known = [name for name in CORRUPTIONS if name != CLEAN]
        if bad := [name for name in self.corruptions if name not in known]:
            raise ValueError(f"unknown corruption {bad[0]!r}: choose from {', '.join(known)}")
        if not self.rates or not all(0 < rate < 1 for rate in self.rates) or len(set(self.rates)) < len(self.rates):
            raise ValueError(f"rates must be shares in (0, 1), one or more, each once, got {self.rates}")

    @classmethod
    def quick(cls) -> "DoseConfig":
        """The tiny model for a few steps at two doses: enough to see that it works, too little to judge."""
        return cls(
            model="tiny",
            methods=("adamw", "post-smooth", "adamw-auto", "muon", "pre-smooth", "pre-auto"),
            rates=(1e-3, 1e-2),
            steps=10,
            sequences=4,
            length=64,
            eval_tokens=2048,
            seeds=2,
            compile=False,
        )


@dataclass(frozen=True, kw_only=True)
class DoseRun(TypedRow):
    """One run: its dose and how it ended."""

    method: str
    lr: float
    corruption: str  # a key of CORRUPTIONS
    rate: float
    seed: int
    loss: float | None  # on validation tokens after the last step; None where the run diverged
    diverged: str | None
    corrupted: int  # entries, over all steps
    still: float  # the loss of a model that knows nothing: the logarithm of the vocabulary

    @property
    def is_lost(self) -> bool:
        """Whether the run diverged, or ended no lower than a model that knows nothing."""
        return self.loss is None or self.loss >= self.still

    @property
    def counted(self) -> float:
        """The loss; a run that is lost counts as one that stood still."""
        return self.still if self.loss is None else min(self.loss, self.still)


def units(config: DoseConfig) -> list[Piece]:
    """One unit per run, seed by seed, the doses from low to high."""
    doses = [(CLEAN, 0.0), *((name, rate) for rate in config.rates for name in config.corruptions)]
    return [
        {"method": method, "corruption": name, "rate": rate, "seed": seed}
        for seed in config.all_seeds()
        for name, rate in doses
        for method in config.methods
    ]


def run_unit(config: DoseConfig, piece: Piece) -> Iterator[Row]:
    """Yield the row of one run."""
    run = Run(config.settings(piece["method"], piece["seed"]), config.folder())
    corruption = GradientCorruption(CORRUPTIONS[piece["corruption"]], piece["rate"], piece["seed"])
    groups = run.trainer.optimizer.param_groups
    hidden = {p for group in groups if group["role"] == "hidden" for p in group["params"]}
    corruption.attach(p for p in run.trainer.model.parameters() if p in hidden)  # in an order that no method changes
    with subnormals_flushed():
        outcome = train_to_end(run, lambda trainer, loss: None)
    yield DoseRun(
        **piece,
        lr=config.rate_of(piece["method"]),
        **outcome._asdict(),
        corrupted=corruption.corrupted,
        still=math.log(run.trainer.config.vocabulary),
    ).to_row()
