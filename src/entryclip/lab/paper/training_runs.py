"""What the training runs of a study of the language model have in common: one config to inherit from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..engine.config_fields import added_field
from ..lm.data.default_data import data_folder
from ..lm.train import training_methods
from ..lm.train.settings import Settings


@dataclass(frozen=True, kw_only=True)
class TrainingRunsConfig:
    """The model, its data, and the options that all methods share.

    data            the folder of shards (empty: the Python standard library's source)
    model           the language model; `width` makes it wider or narrower (None: its own width)
    other_lr        the learning rate of embeddings, head, vectors and scalars, the same for all methods
    other_decay     the weight decay of these
    schedule        the schedule of the learning rate: linear, wsd (warm-up, stable, decay) or constant
    warmup          steps of warm-up before the schedule
    floor           the share of the learning rate that is left at the end of the schedule
    clip_where      the matrices that clips act on, by name or with wildcards (None: all hidden ones)
    precision       fp32, or bf16: the model's matrix products under autocast, faster where a processor
                    multiplies in bf16; weights and optimizer are fp32 in both
    """

    data: str = ""
    model: Literal["paper", "small", "tiny"] = "small"
    other_lr: float = 0.1
    weight_decay: float = 0.1
    other_decay: float = 0.0
    steps: int = 490
    sequences: int = 16
    length: int = 256
    eval_tokens: int = 32768
    compile: bool = True
    width: int | None = added_field(None)
    schedule: Literal["linear", "wsd", "constant"] = added_field("linear")
    warmup: int = added_field(0)
    floor: float = added_field(0.0)
    clip_where: tuple[str, ...] | None = added_field(None)
    precision: Literal["fp32", "bf16"] = added_field("fp32")

    def run_settings(
        self,
        method: str,
        *,
        lr: float,
        level: float | None,
        seed: int,
        steps: int | None = None,
        eval_every: int = 0,
        warmup: int | None = None,
    ) -> Settings:
        """The settings of one run.

        steps       its length, if not that of the config
        eval_every  steps between evaluations (0: one at the end of the run)
        warmup      steps of warm-up, if not those of the config
        """
        steps = self.steps if steps is None else steps
        clips_matrices = training_methods.find(method).stage.acts_on_matrices
        return Settings(
            method=method,
            lr=lr,
            level=level,
            seed=seed,
            model=self.model,
            width=self.width,
            other_lr=self.other_lr,
            weight_decay=self.weight_decay,
            other_decay=self.other_decay,
            steps=steps,
            sequences=self.sequences,
            length=self.length,
            schedule=self.schedule,
            warmup=self.warmup if warmup is None else warmup,
            floor=self.floor,
            clip_where=self.clip_where if clips_matrices else None,
            eval_every=eval_every,
            eval_tokens=self.eval_tokens,
            precision=self.precision,
            compile=self.compile,
        )

    def folder(self) -> Path:
        """The folder of shards."""
        return data_folder(self.data, self.model)
