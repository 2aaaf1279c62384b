"""Gradients of small models in training, and synthetic controls: what does a clip gain before and after scaling?

Each unit trains one model, and stops at some steps to measure every matrix: the gradient of a batch, and the noise of
single samples, which is their gradient less the mean of the others'. One more unit measures the controls.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ...engine.files import checksum
from ...engine.study import DataSource, Piece, Row
from ...lm.data.default_data import data_folder
from ...lm.data.manifest import content_hash
from ..typed_rows import TypedRow
from . import digits, language_model
from .controls import CONTROLS
from .measurement import measure
from .training import Rates, Stage, Task, stages

DIGITS = "digits"  # stands for the corpus of the convolutional network
OPTIMIZERS = ("adamw", "muon")  # in the order of the learning rates


@dataclass(frozen=True)
class ScalesConfig:
    """The models that are trained, and where they are measured.

    corpora     folders of shards, one language model for each (empty: the Python standard library's source)
    model       the layers of the language model
    widths      of the language model; the convolutional network has as many channels
    optimizers  adamw or muon, without a clip
    stages      steps after which gradients are measured; the last one ends the run
    sequences   samples in a batch: sequences of `length` tokens, or four times as many images
    samples     single samples whose gradients are taken; `measured` of them are measured
    lr, other_lr   learning rates of AdamW and Muon on the hidden matrices, and of AdamW on all others
    digits_lr   the learning rates for the convolutional network, AdamW's and Muon's
    """

    corpora: tuple[str, ...] = ("",)
    model: Literal["small", "tiny"] = "small"
    widths: tuple[int, ...] = (64, 128)
    optimizers: tuple[str, ...] = ("adamw", "muon")
    seeds: int = 3
    stages: tuple[int, ...] = (20, 60, 200)
    sequences: int = 16
    length: int = 256
    samples: int = 12
    measured: int = 3
    lr: tuple[float, float] = (0.008, 0.016)
    other_lr: float = 0.1
    digits_lr: tuple[float, float] = (0.002, 0.01)

    @classmethod
    def quick(cls) -> "ScalesConfig":
        """The tiny model for some steps, one seed: enough to see that it works."""
        return cls(
            model="tiny", widths=(64,), seeds=1, stages=(5, 15, 30), sequences=8, length=64, samples=6, measured=1
        )

    def __post_init__(self) -> None:
        if list(self.stages) != sorted(set(self.stages)) or not self.stages or self.stages[0] < 1:
            raise ValueError(f"stages must be steps from 1 on, each later than the one before, got {self.stages}")
        for width in self.widths:
            language_model.sizes(self.model, width)  # refuses one that the heads do not fill
        if unknown := set(self.optimizers) - set(OPTIMIZERS):
            raise ValueError(f"optimizers must be adamw or muon, got {sorted(unknown)[0]!r}")
        if not 1 <= self.measured <= self.samples <= self.sequences or self.samples < 2:
            counts = f"{self.measured}, {self.samples} and {self.sequences}"
            raise ValueError(f"measured <= samples <= sequences must hold, with 2 samples or more, got {counts}")
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}")
        names = [corpus_name(each) for each in self.corpora]
        if len(set(names)) < len(names) or DIGITS in names:
            raise ValueError(f"corpora must be folders of different names, none of them {DIGITS!r}, got {names}")

    def folder(self, corpus: str) -> Path:
        """The folder of shards of one of the corpora."""
        return data_folder(corpus, self.model)


@dataclass(frozen=True, kw_only=True)
class Measured(TypedRow):
    """What `measure` finds on one matrix."""

    rows: int
    columns: int
    raw: float  # the gain of the best clip
    standardized: float  # the same, with the scales of rows and columns divided out
    mean_standardized: float  # the same, with mean absolute values as scales
    rows_share: float  # in the variance of log|x|
    columns_share: float
    rest_share: float
    rest: float  # variance of log|z|
    largest: float  # standardised entry
    entries: int  # that are not 0


@dataclass(frozen=True, kw_only=True)
class GradientRow(Measured):
    """One matrix of a model at one stage: its gradient on a batch, or the noise of a single sample."""

    kind: str = "gradient"
    corpus: str  # its name, or digits
    width: int
    optimizer: str
    seed: int
    step: int
    loss: float  # at that step
    matrix: str
    layer: str  # the kind of matrix
    source: str  # batch or noise


@dataclass(frozen=True, kw_only=True)
class ControlRow(Measured):
    """One synthetic matrix."""

    kind: str = "control"
    law: str
    seed: int


def corpus_name(corpus: str) -> str:
    """Return how rows and figures call a corpus: by the last part of its folder's path.

    >>> corpus_name(""), corpus_name("data/novels")
    ('python', 'novels')
    """
    return Path(corpus).name or "python"


def corpora(config: ScalesConfig) -> DataSource:
    """Return the first folder of shards and a hash of what all manifests say; FileNotFoundError where one is not there.

    Without corpora it is the folder of the digits, which never change.
    """
    folders = [config.folder(each) for each in config.corpora] or [Path(__file__).parent]
    return DataSource(folders[0], checksum([content_hash(each) for each in folders if config.corpora])[:16])


def units(config: ScalesConfig) -> list[Piece]:
    """The controls, then the runs seed by seed, so that a stopped study has something of each model."""
    runs = [
        {"corpus": corpus, "width": width, "optimizer": optimizer, "seed": seed}
        for seed in range(1, config.seeds + 1)
        for corpus in (DIGITS, *config.corpora)
        for width in config.widths
        for optimizer in config.optimizers
    ]
    return [{"corpus": None}, *runs]


def run_unit(config: ScalesConfig, piece: Piece) -> Iterator[Row]:
    """Yield the rows of one run, or of the controls."""
    if piece["corpus"] is None:
        yield from _controls(config)
        return
    which = OPTIMIZERS.index(piece["optimizer"])
    rates = Rates(config.lr[which], config.other_lr)
    if piece["corpus"] == DIGITS:
        rates = Rates(config.digits_lr[which], config.digits_lr[0])
    run = stages(*(_task(config, piece), piece["optimizer"], rates), steps=config.stages, samples=config.samples)
    for stage in run:
        yield from _measured(config, piece, stage)


def _task(config: ScalesConfig, piece: Piece) -> Task:
    width, seed = piece["width"], piece["seed"]
    if piece["corpus"] == DIGITS:
        return digits.make_task(width=width, seed=seed, size=4 * config.sequences)
    return language_model.make_task(
        *(config.folder(piece["corpus"]), config.model),
        width=width,
        seed=seed,
        sequences=config.sequences,
        length=config.length,
        needed=config.stages[-1] + 2 * len(config.stages),
    )


def _measured(config: ScalesConfig, piece: Piece, stage: Stage) -> Iterator[Row]:
    """Yield a row for the batch gradient of each matrix and one for the noise of each sample; zeros have none."""
    name = corpus_name(piece["corpus"])
    common = {**piece, "corpus": name, "step": stage.step, "loss": stage.loss}
    for matrix, gradient, singles in stage.gradients:
        layer = digits.KINDS[matrix.name] if name == DIGITS else language_model.kind_of(matrix.name)
        common |= {"matrix": matrix.name, "layer": layer}
        noise = _less_the_others(singles)[: config.measured]
        for source, x in [("batch", gradient), *(("noise", each) for each in noise)]:
            if bool((x != 0).any()):
                yield GradientRow(**common, source=source, **_of_matrix(x)).to_row()


def _less_the_others(singles: Tensor) -> Tensor:
    """Return each of the matrices, (samples, m, n), less the mean of all others: that is its noise."""
    count = len(singles)
    return (singles - singles.mean(0)) * (count / (count - 1))


def _controls(config: ScalesConfig) -> Iterator[Row]:
    """Draw each law in the shapes of the models' matrices: width x width and 4 width x width."""
    for law, draw in CONTROLS.items():
        for width in config.widths:
            for rows in (width, 4 * width):
                for seed in range(1, config.seeds + 1):
                    x = draw((rows, width), torch.Generator().manual_seed(seed))
                    yield ControlRow(law=law, seed=seed, **_of_matrix(x)).to_row()


def _of_matrix(x: Tensor) -> Row:
    return {"rows": x.shape[0], "columns": x.shape[1], **measure(x)}
