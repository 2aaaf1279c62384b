"""The options of a training run: one frozen `Settings`, checked before anything starts."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from ..model.config import GPTConfig
from . import training_methods
from .schedule import SCHEDULES

MODELS = ("paper", "small", "tiny")


@dataclass(frozen=True)
class Settings:
    """The options of a training run. `Settings.paper()` are the paper's, `Settings.quick()` take seconds on a CPU.

    model               paper (276M), small or tiny
    width               width of the model, a multiple of its heads' size (default: the model's own)
    method              a name in `entryclip.lab.lm.train.training_methods`
    lr                  learning rate of the hidden matrices (default: the paper's for the method)
    other_lr            learning rate of embeddings, head, vectors and scalars (default: 0.0002, for every method)
    level               quantile or threshold of the method's clip (default: the paper's)
    weight_decay        weight decay of the hidden matrices
    other_decay         weight decay of embeddings and head (default: weight_decay)
    steps               number of optimizer steps
    sequences           sequences per batch, over all processes
    length              tokens per sequence
    accumulate          microbatches per step and process
    clip_microbatches   quantile of a smooth clip of each microbatch's gradient, before their mean (default: no clip)
    clip_from           first step at which the method's clip acts; 0 for methods with a rule for the whole gradient's
                        norm or an optimizer of their own
    clip_where          matrices that the clip acts on, by name or with wildcards (default: all hidden ones, no tables)
    schedule            schedule of the learning rate: linear, wsd (warm-up, stable, decay) or constant
    warmup              steps of warm-up before the schedule
    floor               share of the learning rate that is left at the end of the schedule
    seed                seed of the initial weights and of the order of the data
    eval_every          steps between evaluations, four times as often in the last fifth of the run (0: only at its end)
    eval_tokens         validation tokens per evaluation
    eval_order          spread: fixed sequences from all over the validation data; first: its first tokens
    precision           fp32, or bf16 (autocast)
    compile             compile the model with torch.compile

    >>> Settings(method="post-smooth", sequences=8, length=512).batch_tokens
    4096
    """

    model: Literal["paper", "small", "tiny"] = "small"
    width: int | None = None
    method: str = "post-smooth"
    lr: float | None = None
    other_lr: float | None = None
    level: float | None = None
    weight_decay: float = 0.1
    other_decay: float | None = None
    steps: int = 500
    sequences: int = 8
    length: int = 512
    accumulate: int = 1
    clip_microbatches: float | None = None
    clip_from: int = 0
    clip_where: tuple[str, ...] | None = None
    schedule: Literal["linear", "wsd", "constant"] = "linear"
    warmup: int = 0
    floor: float = 0.0
    seed: int = 1
    eval_every: int = 25
    eval_tokens: int = 65536
    eval_order: Literal["spread", "first"] = "spread"  # first: as the speed-run, whose documents are shuffled
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_counts()
        self.sizes()  # refuses a bad width
        method = training_methods.find(self.method)
        self._check_rates()
        if self.level is not None:
            method.check_level(self.level)
        if isinstance(self.clip_where, str):
            raise TypeError(f"clip_where must be several names, a tuple of them, got {self.clip_where!r}")
        if self.clip_where is not None and not method.stage.acts_on_matrices:
            raise ValueError(f"clip_where is for methods that clip matrices, {self.method} does not: leave it out")
        if self.clip_where is not None and method.everywhere:
            raise ValueError(f"{self.method} acts on every parameter: leave out clip_where, got {self.clip_where}")
        if self.clip_from and (method.norm or method.variant):
            raise ValueError(f"{self.method} acts from the first step on: leave out clip_from, got {self.clip_from}")
        if self.clip_microbatches is not None and not 0 < self.clip_microbatches <= 1:
            raise ValueError(f"clip_microbatches must be a quantile in (0, 1], got {self.clip_microbatches}")

    def _check_choices(self) -> None:
        allowed = {"model": MODELS, "schedule": SCHEDULES, "eval_order": ("spread", "first")}
        for name, choices in {**allowed, "precision": ("fp32", "bf16")}.items():
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")

    def _check_rates(self) -> None:
        for name in ("lr", "other_lr"):
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be a finite number above 0, got {value}")
        for name in ("weight_decay", "other_decay"):
            if (value := getattr(self, name)) is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a finite number, 0 or more, got {value}")
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor must be a share of the learning rate, 0 to 1, got {self.floor}")

    def _check_counts(self) -> None:
        for name in ("steps", "sequences", "length", "accumulate", "eval_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("clip_from", "warmup", "seed", "eval_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if self.warmup >= self.steps:
            raise ValueError(f"warmup must be below the {self.steps} steps of the run, got {self.warmup}")
        if self.sequences % self.accumulate:
            raise ValueError(f"{self.sequences} sequences do not divide into {self.accumulate} microbatches")
        if self.eval_tokens < self.length:
            raise ValueError(f"eval_tokens must be at least one sequence, {self.length} tokens, got {self.eval_tokens}")

    @classmethod
    def paper(cls, **changes: Any) -> "Settings":
        """The paper's run: 276M parameters, 49,152 tokens a step, 1770 steps as the speed-run; for one A100."""
        batch = cls(model="paper", steps=1770, sequences=12, length=4096, eval_tokens=10_485_760)
        course = dataclasses.replace(batch, eval_every=125, eval_order="first", precision="bf16", compile=True)
        return dataclasses.replace(course, **changes)

    @classmethod
    def snapshot(cls, **changes: Any) -> "Settings":
        """The speed-run's own settings: eight times the tokens a step, for eight GPUs."""
        own = cls.paper(method="snapshot", schedule="wsd", floor=0.1, sequences=96)
        return dataclasses.replace(own, **changes)

    @classmethod
    def quick(cls, **changes: Any) -> "Settings":
        """The tiny model for 60 steps: seconds on a CPU."""
        own = cls(model="tiny", steps=60, sequences=4, length=128, lr=0.01, other_lr=0.01, eval_every=20)
        own = dataclasses.replace(own, eval_tokens=4096)
        return dataclasses.replace(own, **changes)

    @property
    def batch_tokens(self) -> int:
        """Number of tokens per step, over all processes."""
        return self.sequences * self.length

    def sizes(self) -> GPTConfig:
        """Return the model's sizes, before its vocabulary is known."""
        sizes = {"paper": GPTConfig.paper, "small": GPTConfig.small, "tiny": GPTConfig.tiny}[self.model]()
        return sizes if self.width is None else sizes.with_width(self.width)

    def config(self, vocabulary: int, separator: int) -> GPTConfig:
        """Return the model's sizes for the tokens of the data."""
        return self.sizes().with_vocabulary(vocabulary, separator)
