"""Training runs of the language model at fixed learning rates: what the studies of `auto()` have in common.

Nothing is tuned. Every method trains at the rate that was best without a clip, one for AdamW and one for Muon.
"""

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from ..lm.data.default_data import data_folder
from ..lm.train import training_methods
from ..lm.train.divergence import Diverged
from ..lm.train.run import Run, StepCallback
from ..lm.train.settings import Settings


class Outcome(NamedTuple):
    """How a run ended: the validation loss after its last step, or None and the reason."""

    loss: float | None
    diverged: str | None


@dataclass(frozen=True, kw_only=True)
class FixedRateConfig:
    """The model, its data and its rates.

    data            the folder of shards (empty: the Python standard library's source)
    methods         names in `lab.lm.train.training_methods`
    adamw_lr        the learning rate of the hidden matrices for methods on AdamW
    muon_lr         the same for methods on Muon
    other_lr        the learning rate of embeddings, head, vectors and scalars
    other_decay     the weight decay of these
    first_seed      the first of the seeds, which follow each other
    seeds           their number
    """

    data: str = ""
    model: Literal["small", "tiny"] = "small"
    methods: tuple[str, ...] = ()
    adamw_lr: float = 0.008
    muon_lr: float = 0.016
    other_lr: float = 0.1
    weight_decay: float = 0.1
    other_decay: float = 0.0
    steps: int = 490
    sequences: int = 16
    length: int = 256
    eval_tokens: int = 32768
    first_seed: int = 301
    seeds: int = 8
    compile: bool = True

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
        return Settings(
            method=method,
            lr=self.rate_of(method),
            seed=seed,
            model=self.model,
            other_lr=self.other_lr,
            weight_decay=self.weight_decay,
            other_decay=self.other_decay,
            steps=self.steps,
            sequences=self.sequences,
            length=self.length,
            eval_every=self.steps,
            eval_tokens=self.eval_tokens,
            compile=self.compile,
        )

    def folder(self) -> Path:
        """The folder of shards."""
        return _folder(self.data, self.model)


@functools.cache
def _folder(data: str, model: str) -> Path:
    """Return the folder of shards; to look for the default one takes seconds, too long for each of many short runs."""
    return data_folder(data, model)


def train_to_end(run: Run, progress: StepCallback) -> Outcome:
    """Train to the last step; a run whose final loss is not a number counts as diverged too."""
    try:
        loss = run.advance(progress)[-1]["val_loss"]
    except Diverged as stop:
        return Outcome(None, str(stop))
    return Outcome(loss, None) if math.isfinite(loss) else Outcome(None, f"the final validation loss is {loss}")
