"""What the pretraining study is told."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...lm.data.default_data import data_folder
from ...lm.train import training_methods as methods
from ...lm.train.settings import Settings

POST = ("adamw", "adamw-norm", "post-hard", "post-smooth", "post-smooth-rms")
PRE = ("muon", "spectra", "pre-hard", "pre-smooth")
HEADLINE = ("adamw", "muon", "post-smooth", "pre-smooth", "post-hard", "pre-hard", "spectra")


@dataclass(frozen=True)
class Config:
    """Methods, what every run has in common, and how they are tuned and compared.

    data            the folder of shards (empty: the Python standard library's source)
    methods         as in `entryclip.lab.lm.train.training_methods`; only the hidden matrices tell them apart
    rates           of the hidden matrices: what the search of a method begins with
    level           of the clips at first: quantile or threshold (None: the paper's)
    other_lr        of embeddings, head, vectors and scalars, the same for all methods; `other_decay` their decay
    trials          runs that each method is tuned with, all with the first `seed`, at most `tuning_steps` long
    seeds           runs of the tuned method, with the seeds that follow; `headline_seeds` of the methods in HEADLINE

    >>> Config().settings("post-smooth", lr=1e-3, level=0.99, seed=2).batch_tokens
    4096
    """

    data: str = ""
    model: Literal["paper", "small", "tiny"] = "small"
    methods: tuple[str, ...] = (*POST, *PRE)
    rates: tuple[float, ...] = (4e-3, 8e-3)
    level: float | None = None
    other_lr: float = 0.1
    weight_decay: float = 0.1
    other_decay: float = 0.0
    steps: int = 490
    tuning_steps: int = 245
    sequences: int = 16
    length: int = 256
    eval_every: int = 70
    eval_tokens: int = 32768
    trials: int = 4
    seed: int = 100
    seeds: int = 3
    headline_seeds: int = 5
    compile: bool = True

    @classmethod
    def quick(cls) -> "Config":
        """Four methods on the tiny model, seconds a run: to see that it works, not to compare them."""
        return cls(
            model="tiny",
            methods=("adamw", "post-smooth", "muon", "pre-smooth"),
            rates=(5e-3, 1e-2),
            steps=40,
            tuning_steps=40,
            sequences=4,
            length=64,
            eval_every=10,
            eval_tokens=2048,
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

    def seeds_of(self, method: str) -> range:
        """The seeds that are reported: none of them was tuned with."""
        return range(self.seed + 1, self.seed + 1 + (self.headline_seeds if method in HEADLINE else self.seeds))

    def level_of(self, method: str) -> float | None:
        """The level that the search of a method begins with."""
        own = methods.find(method).level
        return own if self.level is None or own is None else self.level

    def folder(self) -> Path:
        """Of the shards."""
        return data_folder(self.data, self.model)

    def settings(self, method: str, *, lr: float, level: float | None, seed: int) -> Settings:
        """Of one run."""
        own = {"data", "methods", "rates", "level", "trials", "tuning_steps", "seed", "seeds", "headline_seeds"}
        common: dict[str, Any] = {key: value for key, value in vars(self).items() if key not in own}
        return Settings(method=method, lr=lr, level=level, seed=seed, **common)
