"""The noise of real gradients (`fig:noise_models`, the real column; `fig:r_hat`, `fig:corr`, `fig:hill`).

A small language model is probed at three stages of its training, in one run or several. Then the same model is
trained with the clip on the hidden matrices with the higher R-hat alone, on the others alone, on all and on none: does
R-hat, or the probe's advice, say where clipping helps?
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from ....diagnostics import MatrixNoise, max_entry_correlation, probe
from ....diagnostics.matrices import select
from ...engine.config_fields import extent_field
from ...engine.study import Piece, Row
from ...lm.data.default_data import data_folder
from ...lm.train import training_methods as methods
from ...lm.train.divergence import Diverged
from ...lm.train.probe_inputs import from_checkpoint
from ...lm.train.run import Run
from ...lm.train.settings import Settings
from ...lm.train.trainer import Trainer
from .clipped_parameters import clipped_parameters

_WITHOUT_CLIP = {"post": "adamw", "pre": "muon"}  # the plain method, by the stage of the clip
_DRAWS = 400  # of Gaussian noise, for its rho to .05


@dataclass(frozen=True)
class NoiseStructureConfig:
    """The run whose noise is measured, and the runs that are clipped on some of the hidden matrices.

    data           the folder of shards (empty: the Python standard library's source)
    stages         steps of AdamW's run after which it is probed, with `samples` single sequences
    shown          the matrix of the figure `real`: the paper shows blocks.10 of 12
    noise_seeds    the number of runs that are probed, with the seeds from `seed` on; the figures of single matrices
                   and the choice of what to clip are those of the first
    methods        each is trained with its clip on all hidden matrices, on none, and on either half of them by R-hat
                   (none: the noise alone)
    lr             the learning rate of the hidden matrices, the same with and without a clip
    clipped_steps  the length of these runs
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
    noise_seeds: int = extent_field(1)
    methods: tuple[str, ...] = ("post-smooth-rms", "pre-smooth")
    clipped_steps: int = 200
    seeds: int = 4
    seed: int = 1
    sequences: int = 16
    length: int = 256
    eval_tokens: int = 65536
    compile: bool = True

    @classmethod
    def quick(cls) -> "NoiseStructureConfig":
        """The tiny model for some steps: enough to see that it works."""
        return cls(
            model="tiny",
            lr=0.01,
            steps=16,
            stages=(4, 16),
            samples=12,
            directions=2,
            shown="blocks.1.attn.qkv_w.v",
            clipped_steps=8,
            seeds=1,
            sequences=4,
            length=64,
            eval_tokens=512,
            compile=False,
        )

    def __post_init__(self) -> None:
        if list(self.stages) != sorted(set(self.stages)) or len(self.stages) < 2:
            raise ValueError(f"stages must be two or more steps, each later than the one before, got {self.stages}")
        if not 1 <= self.stages[0] <= self.stages[-1] <= self.steps:
            raise ValueError(f"stages must be steps of the run, 1 to {self.steps}, got {self.stages}")
        for name in ("clipped_steps", "seeds", "noise_seeds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in self.methods:
            if methods.find(name).stage not in _WITHOUT_CLIP:
                raise ValueError(f"methods must clip single matrices, {name} does not")

    def settings(self, method: str, *, seed: int, steps: int, where: tuple[str, ...] | None = None) -> Settings:
        """The settings of one run; `where` names the parameters to clip (None: all hidden ones)."""
        return Settings(
            method=method,
            seed=seed,
            steps=steps,
            eval_every=steps,
            clip_where=where,
            model=self.model,
            lr=self.lr,
            other_lr=self.other_lr,
            weight_decay=self.weight_decay,
            other_decay=self.other_decay,
            sequences=self.sequences,
            length=self.length,
            eval_tokens=self.eval_tokens,
            compile=self.compile,
        )

    def folder(self) -> Path:
        """The folder of shards."""
        return data_folder(self.data, self.model)


def units(config: NoiseStructureConfig) -> list[Piece]:
    """One unit for each run and stage: the noise of that checkpoint."""
    seeds = range(config.seed, config.seed + config.noise_seeds)
    return [{"kind": "noise", "seed": seed, "step": step} for seed in seeds for step in config.stages]


def next_units(config: NoiseStructureConfig, rows: Sequence[Row]) -> list[Piece]:
    """The runs with a clip on some of the parameters, chosen by the noise that was measured."""
    return [
        {"kind": "clipped", "method": method, "arm": arm, "where": list(where), "seed": config.seed + 1 + i}
        for i in range(config.seeds)
        for method in config.methods
        for arm, where in clipped_parameters(row for row in rows if row.get("seed") == config.seed).items()
    ]


def run_unit(config: NoiseStructureConfig, piece: Piece) -> Iterator[Row]:
    """Rows `matrix`, `shown` and `gaussian`, or one row `clipped`."""
    if piece["kind"] == "noise":
        return _noise(config, piece["seed"], piece["step"])
    return _clipped(config, piece)


def _noise(config: NoiseStructureConfig, seed: int, step: int) -> Iterator[Row]:
    """Train with AdamW up to a step, and probe that checkpoint; with what is needed once, from the first run."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(config.settings("adamw", seed=seed, steps=config.steps), config.folder(), Path(folder))
        _check(config, run.trainer)
        while run.trainer.done < step:
            run.trainer.step()
        run.save()
        model, loss, batches = from_checkpoint(Path(folder), config.folder())
        report = probe(model, loss, batches, directions=config.directions, samples=config.samples)
    for found in report.matrices:
        yield {"kind": "matrix", "seed": seed, "step": step, **_matrix(found)}
    if seed == config.seed:
        yield {"kind": "shown", "seed": seed, "step": step, **_shown(report[config.shown])}
        if step == config.stages[-1]:
            shapes = {found.shape: found.samples for found in report.matrices}
            yield from (_gaussian(shape, samples) for shape, samples in shapes.items())


def _check(config: NoiseStructureConfig, trainer: Trainer) -> None:
    """Refuse, before an hour of training, a config that would fail after it."""
    names = [matrix.name for matrix in select(trainer.model).matrices]
    if config.shown not in names:
        raise ValueError(f"shown must be a hidden matrix of the model, {names[0]} to {names[-1]}, got {config.shown!r}")
    left = (len(trainer.batches) - config.steps) * config.sequences
    if left < config.samples:
        raise ValueError(f"after {config.steps} steps {left} sequences are left, too few for {config.samples} samples")


def _gaussian(shape: tuple[int, int], samples: int) -> Row:
    """Spearman's rho of max |E| and sigma_1(E) for Gaussian noise of one size, which is not 0."""
    noise = torch.randn(_DRAWS, *shape, generator=torch.Generator().manual_seed(0))
    rho = max_entry_correlation(noise).rho
    return {"kind": "gaussian", "rows": shape[0], "columns": shape[1], "samples": samples, "rho": rho}


def _matrix(found: MatrixNoise) -> Row:
    """The part of the probe's row that this study uses, with the Hill plot."""
    row = {
        key: value
        for key, value in found.row().items()
        if key not in ("spikes", "standardized_spikes", "notes", "reason")
    }
    row["spikes"] = len(found.spikes)
    row["relative_low"], row["relative_high"] = found.relative.interval if found.relative else (None, None)
    if found.tail is not None:
        row["hill_k"] = found.tail.plot.k.tolist()
        row["hill"] = [round(1 / each, 4) if each > 0 else None for each in found.tail.plot.hill.tolist()]
    return row


def _shown(found: MatrixNoise) -> Row:
    """The samples behind the figure `real`: largest entries, sigma_1, R-hat, and the histogram of all entries."""
    if found.correlation is None or found.localization is None:
        raise ValueError(f"{found.name} has no noise to show: choose another matrix as `shown` ({found.notes})")
    low, high, count = found.marginal
    parts = {"largest": found.correlation.largest, "sigma": found.correlation.sigma}
    parts |= {"r_hat": found.localization.normalized[:, 0], "from": low, "to": high, "count": count}
    return {"matrix": found.name, **{key: part.tolist() for key, part in parts.items()}}


def _clipped(config: NoiseStructureConfig, piece: Piece) -> Iterator[Row]:
    """Train with the clip on some parameters; on none of them it is the plain optimizer."""
    where = tuple(piece["where"])
    method = piece["method"] if where else _WITHOUT_CLIP[methods.find(piece["method"]).stage]
    settings = config.settings(method, seed=piece["seed"], steps=config.clipped_steps, where=where or None)
    run = Run(settings, config.folder())
    try:
        final = run.advance()[-1]["val_loss"]
    except Diverged:
        final = None
    yield {**piece, "val_loss": final, "seconds": run.trainer.seconds}
