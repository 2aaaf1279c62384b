"""Language-model pretraining (Section "Language model pretraining"; `fig:nano_gpt_result`, `fig:lr_sweep`).

All methods train the same model on the same batches from the same weights; they differ in what moves the hidden
matrices. Each is tuned with the same number of trials on one seed, then run with seeds that it was not tuned on.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ...lm.train.divergence import Diverged
from ...lm.train.run import Run
from .config import Config
from .search import best, next_trial
from .tuning import trials_of

TITLE = "Language-model pretraining: tokens saved by clipping"
CAPTIONS = {
    "nano-gpt-result": "Validation loss against tokens, mean over seeds (the paper's figure `fig:nano_gpt_result`). "
    "Dashed: the final loss of the method without clipping. A speedup is the tokens of that method over the tokens "
    "with which another reaches its final loss, over the seeds that both have; below, the curve of one with fewer "
    "seeds is moved to the dashed level of them all.",
    "lr-sweep": "Final validation loss of every run of the tuning, by learning rate of the hidden matrices (the "
    "paper's figure `fig:lr_sweep`); these runs may be shorter than the reported ones. Crosses: other levels.",
}
Unit = dict[str, Any]
Row = dict[str, Any]


def units(config: Config) -> list[Unit]:
    """The runs that the tuning of every method begins with."""
    pairs = itertools.product(config.rates, config.methods)
    return [_unit("tuning", method, lr, config.level_of(method), config.seed) for lr, method in pairs]


def next_units(config: Config, rows: Sequence[Row]) -> list[Unit]:
    """The runs that these rows call for: more trials, then the tuned methods with other seeds."""
    found = []
    for method in config.methods:
        trials = trials_of(method, rows)
        if len(trials) < config.trials:
            found.append(_unit("tuning", method, *next_trial(method, trials), config.seed))
        else:
            top = best(trials)
            found += [_unit("report", method, top.lr, top.level, seed) for seed in config.seeds_of(method)]
    return found


def run_unit(config: Config, unit: Unit) -> Iterator[Row]:
    """One run: a row for every evaluation. One that diverged ends with a row without a loss."""
    settings = config.settings(unit["method"], lr=unit["lr"], level=unit["level"], seed=unit["seed"])
    if unit["stage"] == "tuning":  # only its end is looked at
        steps = min(config.tuning_steps, config.steps)
        settings = replace(settings, steps=steps, eval_every=steps)
    run, diverged = Run(settings, config.folder()), None
    try:
        run.advance()
    except Diverged as stop:
        diverged = str(stop)
    for i, (row, seconds) in enumerate(zip(run.rows, run.times, strict=True)):
        last = i == len(run.rows) - 1 and not diverged
        yield {**unit, **row, **unit, "seconds": seconds, "last": last, "diverged": None}
    if diverged:
        lost = {"loss": None, "val_loss": None}
        at = {"step": run.trainer.done, "tokens": run.trainer.tokens, "seconds": run.trainer.seconds}
        yield {**unit, **at, **lost, "last": True, "diverged": diverged}


def _unit(stage: str, method: str, lr: float, level: float | None, seed: int) -> Unit:
    return {"stage": stage, "method": method, "lr": lr, "level": level, "seed": seed}


def plot(rows: Sequence[Row]) -> dict[str, Any]:
    """`nano-gpt-result` and `lr-sweep`."""
    from .drawing import plot as draw  # not at the top: another look needs no new rows

    return draw(rows)


def claims(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The paper's, with intervals."""
    from .verdicts import claims as judge

    return judge(rows)


def tables(rows: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
    """Every method, tuned: loss, saving, time."""
    from .table import tables as tabulate

    return tabulate(rows)
