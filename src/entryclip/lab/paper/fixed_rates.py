"""Training runs of the language model at fixed learning rates: what the studies of `auto()` have in common.

Nothing is tuned. Every method trains at the rate that was best without a clip, one for AdamW and one for Muon.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from ..engine.config_fields import extent_field
from ..lm.train import training_methods
from ..lm.train.divergence import Diverged
from ..lm.train.run import Run, StepCallback
from ..lm.train.settings import Settings
from .training_runs import TrainingRunsConfig


class Outcome(NamedTuple):
    """How a run ended: the validation loss after its last step, or None and the reason."""

    loss: float | None
    diverged: str | None


@dataclass(frozen=True, kw_only=True)
class FixedRateConfig(TrainingRunsConfig):
    """The methods, their rates and seeds; the fields of `TrainingRunsConfig` are common to all runs.

    methods         names in `lab.lm.train.training_methods`
    adamw_lr        the learning rate of the hidden matrices for methods on AdamW
    muon_lr         the same for methods on Muon
    first_seed      the first of the seeds, which follow each other
    seeds           their number
    """

    methods: tuple[str, ...] = extent_field(())
    adamw_lr: float = 0.008
    muon_lr: float = 0.016
    first_seed: int = extent_field(301)
    seeds: int = extent_field(8)

    def __post_init__(self) -> None:
        if not self.methods or len(set(self.methods)) != len(self.methods):
            raise ValueError(f"methods must be one or more, each once, got {self.methods}")
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}")
        for method in self.methods:
            self.settings(method, self.first_seed)  # refuses bad values

    def all_seeds(self) -> range:
        """The seeds of the runs, the same for all methods."""
        return range(self.first_seed, self.first_seed + self.seeds)

    def rate_of(self, method: str) -> float:
        """The learning rate of a method's hidden matrices: that of its optimizer without a clip."""
        return self.adamw_lr if training_methods.find(method).optimizer == "adamw" else self.muon_lr

    def settings(self, method: str, seed: int) -> Settings:
        """The settings of one run; only its final loss is used."""
        return self.run_settings(method, lr=self.rate_of(method), level=None, seed=seed)


def train_to_end(run: Run, progress: StepCallback) -> Outcome:
    """Train to the last step; a run whose final loss is not a number counts as diverged too."""
    try:
        loss = run.advance(progress)[-1]["val_loss"]
    except Diverged as stop:
        return Outcome(None, str(stop))
    return Outcome(loss, None) if math.isfinite(loss) else Outcome(None, f"the final validation loss is {loss}")
