"""The noise of real gradients (`fig:noise_models`, the real column; `fig:r_hat`, `fig:corr`, `fig:hill`).

A small language model is probed at three stages of its training. Then the question behind all of it: does R-hat, or
the probe's advice, say where clipping helps? The same model is trained with the clip on the hidden matrices with the
higher R-hat alone, on the others alone, on all and on none.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ....diagnostics import MatrixNoise, max_entry_correlation, probe
from ....diagnostics.matrices import select
from ...lm.train import methods
from ...lm.train.nonfinite import Diverged
from ...lm.train.probing import from_checkpoint
from ...lm.train.run import Run
from ...lm.train.trainer import Trainer
from .config import BASELINES, Config
from .halves import arms

TITLE = "The noise of real gradients, and where clipping helps"
CAPTIONS = {
    "real": "One matrix at three stages of training (the real column of the paper's figure `fig:noise_models`). Above: "
    "its noise entries in units of the sample's scale; dotted: Gaussian. Middle: largest entry against sigma_1, both "
    "over their medians, one point per sample. Below: R-hat of the samples, its median (line), and the 95 % band of "
    "that median for Gaussian noise (grey).",
    "r_hat": "Median R-hat of the noise of every hidden matrix along the k-th direction of the gradient, at three "
    "stages (the paper's `fig:r_hat`). Grey: the 95 % band of Gaussian noise.",
    "corr": "Spearman's rho of max |E| and sigma_1(E) for every hidden matrix (the paper's `fig:corr`), with 95 % "
    "intervals at the last stage. Above: as they are. Below: in units of each sample's scale, where samples of "
    "different size no longer make a correlation; grey: where Gaussian noise lies (95 %).",
    "hill": "Hill's tail index over the number of largest entries it is taken from (the paper's `fig:hill`), a line "
    "for each matrix of a kind. Lower is heavier.",
    "where": "Final validation loss with a clip on some of the hidden matrices less that without, from the same "
    "weights on the same batches: seeds (dots), their mean and 95 % interval.",
}
_DRAWS = 400  # of Gaussian noise, for its rho to .05
Row = dict[str, Any]
Unit = dict[str, Any]


def units(config: Config) -> list[Unit]:
    """First the noise of one run."""
    return [{"kind": "noise"}]


def next_units(config: Config, rows: Sequence[Row]) -> list[Unit]:
    """Then the runs that are clipped here and there: where, the noise tells."""
    return [
        {"kind": "clipped", "method": method, "arm": arm, "where": list(where), "seed": config.seed + 1 + i}
        for i in range(config.seeds)
        for method in config.methods
        for arm, where in arms(rows).items()
    ]


def run_unit(config: Config, unit: Unit) -> Iterator[Row]:
    """Rows `matrix` and `shown`, or one row `clipped`."""
    return _noise(config) if unit["kind"] == "noise" else _clipped(config, unit)


def _noise(config: Config) -> Iterator[Row]:
    settings = config.settings("adamw", seed=config.seed, steps=config.steps)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(settings, config.folder(), Path(folder), save_every=0, keep=0)
        _check(config, run.trainer)
        run.advance(lambda trainer, loss: run.save() if trainer.done in config.stages else None)
        for step in config.stages:
            place = Path(folder) / "checkpoints" / f"step_{step:06d}"
            model, loss, batches = from_checkpoint(place, config.folder())
            report = probe(model, loss, batches, directions=config.directions, samples=config.samples)
            for found in report.matrices:
                yield {"kind": "matrix", "step": step, **_matrix(found)}
            yield {"kind": "shown", "step": step, **_shown(report[config.shown])}
    shapes = {found.shape: found.samples for found in report.matrices}
    yield from (_gaussian(shape, samples) for shape, samples in shapes.items())


def _check(config: Config, trainer: Trainer) -> None:
    """Before an hour of training, what is needed after it."""
    names = [matrix.name for matrix in select(trainer.model).matrices]
    if config.shown not in names:
        raise ValueError(f"shown must be a hidden matrix of the model, {names[0]} to {names[-1]}, got {config.shown!r}")
    left = (len(trainer.batches) - config.steps) * config.sequences
    if left < config.samples:
        raise ValueError(f"after {config.steps} steps {left} sequences are left, too few for {config.samples} samples")


def _gaussian(shape: tuple[int, int], samples: int) -> Row:
    """What rho of max |E| and sigma_1(E) is for Gaussian noise of one size: not 0."""
    noise = torch.randn(_DRAWS, *shape, generator=torch.Generator().manual_seed(0))
    rho = max_entry_correlation(noise).rho
    return {"kind": "gaussian", "rows": shape[0], "columns": shape[1], "samples": samples, "rho": rho}


def _matrix(found: MatrixNoise) -> Row:
    """Of the probe's row what is looked at here, with the Hill plot and the bins of the histogram."""
    row = {key: value for key, value in found.row().items() if key not in ("spikes", "notes", "reason")}
    row["spikes"] = len(found.spikes)
    row["relative_low"], row["relative_high"] = found.relative.interval if found.relative else (None, None)
    if found.tail is not None:
        row["hill_k"] = found.tail.plot.k.tolist()
        row["hill"] = [round(1 / each, 4) if each > 0 else None for each in found.tail.plot.hill.tolist()]
    return row


def _shown(found: MatrixNoise) -> Row:
    if found.correlation is None or found.localization is None:
        raise ValueError(f"{found.name} has no noise to show: choose another matrix as `shown` ({found.notes})")
    low, high, count = found.marginal
    parts: dict[str, Any] = {"largest": found.correlation.largest, "sigma": found.correlation.sigma}
    parts |= {"r_hat": found.localization.normalized[:, 0], "from": low, "to": high, "count": count}
    return {"matrix": found.name, **{key: part.tolist() for key, part in parts.items()}}


def _clipped(config: Config, unit: Unit) -> Iterator[Row]:
    """The arm without a clip is the plain optimizer."""
    where = tuple(unit["where"])
    method = unit["method"] if where else BASELINES[methods.find(unit["method"]).stage]
    settings = config.settings(method, seed=unit["seed"], steps=config.clipped_steps, where=where or None)
    run = Run(settings, config.folder())
    try:
        final = run.advance()[-1]["val_loss"]
    except Diverged:
        final = None
    yield {**unit, "val_loss": final, "seconds": run.trainer.seconds}


def plot(rows: Sequence[Row]) -> dict[str, Any]:
    """A figure for each caption; `where` once the clipped runs are there."""
    from .drawing import plot as draw  # not at the top: another look needs no new rows

    return draw(rows)


def claims(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The paper's, and what clipping here and there showed."""
    from .verdicts import claims as judge

    return judge(rows)
