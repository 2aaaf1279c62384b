"""Runs of the language model without a clip and with `auto()` at each stage, on the same batches and weights.

One unit is one method with one seed. Beside the final loss a row has what `auto()` did in the run.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from torch import nn

from ....auto_threshold import Auto
from ....clip import Clip
from ...engine.config_fields import extent_field
from ...engine.study import Piece, Row
from ...lm.train.run import Run
from ..fixed_rates import FixedRateConfig, train_to_end
from ..typed_rows import TypedRow
from .counting_auto import Actions, CountingAuto


@dataclass(frozen=True, kw_only=True)
class NoHarmConfig(FixedRateConfig):
    """2.0M tokens a run, with the clips of `auto()` on the gradient and on the update or momentum."""

    methods: tuple[str, ...] = extent_field(("adamw", "adamw-auto", "post-auto", "muon", "muon-auto", "pre-auto"))

    @classmethod
    def quick(cls) -> "NoHarmConfig":
        """The tiny model for a few steps and three seeds: enough to see that it works, too little to judge."""
        return cls(model="tiny", steps=30, sequences=4, length=64, eval_tokens=2048, seeds=3, compile=False)


@dataclass(frozen=True, kw_only=True)
class NoHarmRun(TypedRow):
    """One run: how it ended, and what `auto()` did to the hidden matrices (all 0 without it)."""

    method: str
    lr: float
    seed: int
    loss: float | None  # on validation tokens after the last step; None where the run diverged
    diverged: str | None
    weights: str  # a hash of the final parameters: equal for runs that are equal to the bit
    steps: int
    steps_changed: int  # in which any entry was changed
    entries: int  # that `auto()` was given, over all steps
    entries_changed: int
    matrix_steps: int  # matrices it was given, over all steps
    matrix_steps_clipped: int  # to which the operator was applied
    matrix_steps_guarded: int  # of which the guard alone changed an entry


def units(config: NoHarmConfig) -> list[Piece]:
    """One unit per method and seed, seed by seed, so that a run that is stopped has whole pairs."""
    return [{"method": method, "seed": seed} for seed in config.all_seeds() for method in config.methods]


def run_unit(config: NoHarmConfig, piece: Piece) -> Iterator[Row]:
    """Yield the row of one run."""
    run, actions = Run(config.settings(piece["method"], piece["seed"]), config.folder()), Actions()
    run.trainer.replace_clips(lambda clip: counting(clip, actions))
    outcome = train_to_end(run, lambda trainer, loss: actions.end_step())
    yield NoHarmRun(
        **piece,
        lr=config.rate_of(piece["method"]),
        **outcome._asdict(),
        weights=hash_weights(run.trainer.model),
        **asdict(actions),
    ).to_row()


def counting(clip: Clip, actions: Actions) -> Clip:
    """Return an `auto()` clip that does the same and counts it in `actions`."""
    rule = clip.rule
    if not isinstance(rule, Auto):
        raise TypeError(f"only the actions of auto() are counted, got {clip}: leave that method out")
    return replace(clip, rule=CountingAuto(rule.margin, rule.beta, rule.false_alarms, actions))


def hash_weights(model: nn.Module) -> str:
    """Return a hash of all parameters' bytes."""
    digest = hashlib.sha256()
    for p in model.parameters():
        digest.update(p.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
