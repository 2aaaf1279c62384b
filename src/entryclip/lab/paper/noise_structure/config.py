"""What the noise study is told."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...lm.data.default_data import data_folder
from ...lm.train import training_methods as methods
from ...lm.train.settings import Settings

BASELINES = {"post": "adamw", "pre": "muon"}


@dataclass(frozen=True)
class Config:
    """The run whose noise is measured, and the runs that are clipped here and there.

    data        the folder of shards (empty: the Python standard library's source)
    stages      steps of AdamW's run after which it is probed, with `samples` single sequences
    shown       the matrix of the figure `real`: the paper shows blocks.10 of 12
    methods     each is trained with its clip on all hidden matrices, on none, and on two halves of them
    lr          of the hidden matrices, the same with and without a clip: nothing else may differ
    """

    data: str = ""
    model: Literal["small", "tiny"] = "small"
    lr: float = 4e-3
    other_lr: float = 0.1
    weight_decay: float = 0.1
    other_decay: float = 0.0
    steps: int = 490
    stages: tuple[int, ...] = (49, 245, 490)
    samples: int = 130
    directions: int = 8
    shown: str = "blocks.4.attn.qkv_w.v"
    methods: tuple[str, ...] = ("post-smooth-rms", "pre-smooth")
    clipped_steps: int = 200
    seeds: int = 4
    seed: int = 1
    sequences: int = 16
    length: int = 256
    eval_tokens: int = 65536
    compile: bool = True

    @classmethod
    def quick(cls) -> "Config":
        """The tiny model for some steps: to see that it works, not what it finds."""
        sizes: dict[str, Any] = {"sequences": 4, "length": 64, "eval_tokens": 2048, "compile": False}
        course: dict[str, Any] = {"steps": 40, "stages": (10, 20, 40), "clipped_steps": 15, "lr": 0.01}
        return cls(model="tiny", samples=24, directions=3, shown="blocks.1.attn.qkv_w.v", seeds=2, **sizes, **course)

    def __post_init__(self) -> None:
        if list(self.stages) != sorted(set(self.stages)) or len(self.stages) < 2:
            raise ValueError(f"stages must be two or more steps, each later than the one before, got {self.stages}")
        if not 1 <= self.stages[0] <= self.stages[-1] <= self.steps:
            raise ValueError(f"stages must be steps of the run, 1 to {self.steps}, got {self.stages}")
        for name in ("clipped_steps", "seeds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in self.methods:
            if methods.find(name).stage not in BASELINES:
                raise ValueError(f"methods must clip single matrices, {name} does not")

    def settings(self, method: str, *, seed: int, steps: int, where: tuple[str, ...] | None = None) -> Settings:
        """Of one run."""
        own = (
            "model",
            "lr",
            "other_lr",
            "weight_decay",
            "other_decay",
            "sequences",
            "length",
            "eval_tokens",
            "compile",
        )
        common: dict[str, Any] = {name: getattr(self, name) for name in own}
        return Settings(method=method, seed=seed, steps=steps, eval_every=steps, clip_where=where, **common)

    def folder(self) -> Path:
        """Of the shards."""
        return data_folder(self.data, self.model)
