"""All that a training run is told: one frozen `Settings`, checked before anything starts."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from ..model.config import Config
from . import methods
from .schedule import SCHEDULES

MODELS = ("paper", "small", "tiny")


@dataclass(frozen=True)
class Settings:
    """Model, method and course of a run. `Settings.paper()` is the paper's, `Settings.quick()` a minute's first look.

    model               paper (276M), small or tiny
    method              as in `entryclip.lab.lm.train.methods`
    lr, level           of the hidden matrices: learning rate, the clip's quantile or threshold (default: the paper's)
    other_lr            of embeddings, head, vectors and scalars (default: lr)
    weight_decay        of the hidden matrices, and of embeddings and head unless `other_decay` says otherwise
    steps               of the optimizer; a batch is `sequences` of `length` tokens, over all processes
    accumulate          microbatches per step and process
    clip_microbatches   quantile of a smooth clip of every microbatch's gradient, before their mean (None: no clip)
    clip_from           the step at which the method's clip begins
    clip_where          the hidden matrices that it acts on, by name or with wildcards (default: all)
    schedule            of the learning rate: linear, wsd or constant; `warmup` steps before it, `floor` at its end
    seed                of the initial weights and of the order of the data
    eval_every          steps between evaluations on `eval_tokens`; four times as often in the last fifth
    eval_order          spread: sequences from all over what is held out, always the same; first: its first tokens, as
                        the speed-run does, whose documents are shuffled
    precision           fp32, or bf16 (autocast)
    compile             compile the model first

    >>> Settings(method="post-smooth", sequences=8, length=512).batch_tokens
    4096
    """

    model: Literal["paper", "small", "tiny"] = "small"
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
    eval_order: Literal["spread", "first"] = "spread"
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False

    def __post_init__(self) -> None:
        _check_choice("model", self.model, MODELS)
        _check_choice("schedule", self.schedule, SCHEDULES)
        _check_choice("eval_order", self.eval_order, ("spread", "first"))
        _check_choice("precision", self.precision, ("fp32", "bf16"))
        self._check_counts()
        method = methods.find(self.method)
        for name in ("lr", "other_lr"):
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be a finite number above 0, got {value}")
        for name in ("weight_decay", "other_decay"):
            if (value := getattr(self, name)) is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a finite number, 0 or more, got {value}")
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor must be a share of the learning rate, 0 to 1, got {self.floor}")
        if self.level is not None:
            _check_level(self.method, method, self.level)
        if isinstance(self.clip_where, str):
            raise TypeError(f"clip_where must be several names, a tuple of them, got {self.clip_where!r}")
        if self.clip_where is not None and method.stage not in ("pre", "post"):
            raise ValueError(f"clip_where is for methods that clip matrices, {self.method} does not: leave it out")
        if self.clip_microbatches is not None and not 0 < self.clip_microbatches <= 1:
            raise ValueError(f"clip_microbatches must be a quantile in (0, 1], got {self.clip_microbatches}")

    def _check_counts(self) -> None:
        for name in ("steps", "sequences", "length", "accumulate", "eval_every", "eval_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("clip_from", "warmup", "seed"):
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
        """276M parameters, 49,152 tokens a step, 1770 steps as the speed-run; one A100 is enough."""
        own: dict[str, Any] = {"model": "paper", "steps": 1770, "sequences": 12, "length": 4096, "accumulate": 1}
        own |= {"eval_every": 125, "eval_tokens": 10_485_760, "eval_order": "first"}
        return cls(**{**own, "precision": "bf16", "compile": True, **changes})

    @classmethod
    def snapshot(cls, **changes: Any) -> "Settings":
        """The speed-run's own: eight times the tokens a step, on eight GPUs."""
        own: dict[str, Any] = {"method": "snapshot", "schedule": "wsd", "floor": 0.1, "sequences": 96}
        return cls.paper(**{**own, **changes})

    @classmethod
    def quick(cls, **changes: Any) -> "Settings":
        """The tiny model for 60 steps: seconds on a CPU."""
        own: dict[str, Any] = {"model": "tiny", "steps": 60, "sequences": 4, "length": 128, "lr": 0.01}
        return cls(**{**own, "eval_every": 20, "eval_tokens": 4096, **changes})

    @property
    def batch_tokens(self) -> int:
        """Tokens per step, over all processes."""
        return self.sequences * self.length

    def config(self, vocabulary: int, separator: int) -> Config:
        """The model's sizes for these tokens."""
        if self.model == "paper":
            return dataclasses.replace(Config.paper(), vocabulary=vocabulary, separator=separator)
        return {"small": Config.small, "tiny": Config.tiny}[self.model](vocabulary, separator)


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _check_level(name: str, method: methods.Method, level: float) -> None:
    if method.level is None:
        raise ValueError(f"level is for methods that clip, {name} does not: leave it out, got {level}")
    if method.clip in ("norm", "spectra"):
        if not 0 < level < math.inf:
            raise ValueError(f"level is the threshold of {name}, a finite number above 0, got {level}")
    elif not 0 < level <= 1:
        raise ValueError(f"level is the quantile of {name}, in (0, 1], got {level}")
