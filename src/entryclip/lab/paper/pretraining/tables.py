"""The tables of pretraining, a line for every method: its final loss and saving, and how it was tuned."""

from collections.abc import Mapping, Sequence

import numpy as np

from ...engine.study import Row
from ..intervals import nats
from ..lm_methods import BASELINES, METHOD_NAMES
from .claims import percent
from .savings import Curves, curves, difference, saving
from .search import Trial, best, trials_of

REPORTED = (
    "Tuned methods on seeds they were not tuned on: mean final validation loss ± standard deviation over seeds; "
    "difference and tokens saved against AdamW or Muon without clipping, with 95 % intervals over paired seeds; "
    "median seconds of training, on a shared machine"
)
_AGAINST = ("less the baseline's", "tokens saved")
TUNED = "The tuning: learning rates of the hidden matrices, and levels of the clip, that were tried with one seed"


def tables(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """The reported runs and the tuning, by caption; a table without lines is left out."""
    found = {REPORTED: reported(rows), TUNED: tuned(rows)}
    return {caption: lines for caption, lines in found.items() if lines}


def reported(rows: Sequence[Row]) -> list[Row]:
    """The runs of the tuned methods, a line each."""
    found, settings = curves(rows), {row["method"]: row for row in rows if row["stage"] == "report"}
    lines = []
    for method, each in found.items():
        line = {
            "method": METHOD_NAMES[method],
            "learning rate": f"{settings[method]['lr']:g}",
            "level": settings[method]["level"],
        }
        line |= {"seeds": len(each.seeds), "final loss": _final(each)}
        baseline = found.get(BASELINES.get(method, ""))
        line |= dict.fromkeys(_AGAINST, "") if baseline is None else against(baseline, each)
        lines.append({**line, "seconds": f"{np.median(each.seconds):.0f}"})
    return lines


def _final(each: Curves) -> str:
    if lost := int(np.isnan(each.final).sum()):
        return f"diverged in {lost} of {len(each.seeds)}"
    spread = f" ± {each.final.std(ddof=1):.4f}" if len(each.seeds) > 1 else ""
    return f"{each.final.mean():.4f}{spread}"


def against(baseline: Curves, method: Curves) -> Row:
    """What a method gains on its baseline, as text."""
    return dict(zip(_AGAINST, (nats(difference(baseline, method)), percent(saving(baseline, method))), strict=True))


def tuned(rows: Sequence[Row]) -> list[Row]:
    """The trials of every method and the best of them."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows if row["stage"] == "tuning"):
        trials = trials_of(method, rows)
        top = best(trials)
        tried = ", ".join(_setting(trial) for trial in sorted(trials, key=lambda trial: (trial.lr, trial.level or 0)))
        lines.append({"method": METHOD_NAMES[method], "tried": tried, "best": _setting(top), "loss": f"{top.loss:.4f}"})
    return lines


def _setting(trial: Trial) -> str:
    return f"{trial.lr:g}" if trial.level is None else f"{trial.lr:g} at {trial.level:g}"
