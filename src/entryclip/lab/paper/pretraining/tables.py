"""The tables of pretraining, a line for every method: its final loss and saving, and how it was tuned."""

from collections.abc import Mapping, Sequence

import numpy as np

from ...engine.study import Row
from ..intervals import nats
from ..lm_methods import BASELINES, METHOD_NAMES
from .claims import percent
from .savings import Curves, curves, difference, restricted, saving
from .search import Trial, best, trials_of

REPORTED = (
    "Tuned methods on seeds they were not tuned on. Over the seeds that all methods on AdamW have, or all on Muon: "
    "mean final validation loss ± standard deviation, and the difference from AdamW or Muon without clipping. Over all "
    "seeds that the method and this baseline have: their number, the difference again, and tokens saved. Brackets are "
    "95 % intervals, Student's for losses; those of tokens resample the seeds and are too narrow. Median seconds of "
    "training, on a shared machine"
)
_COMMON = ("final loss, common seeds", "less the baseline's, common seeds")
_AGAINST = ("less the baseline's", "tokens saved")
TUNED = "The tuning: learning rates of the hidden matrices, and levels of the clip, that were tried with one seed"


def tables(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """The reported runs and the tuning, by caption; a table without lines is left out."""
    found = {REPORTED: reported(rows), TUNED: tuned(rows)}
    return {caption: lines for caption, lines in found.items() if lines}


def reported(rows: Sequence[Row]) -> list[Row]:
    """The runs of the tuned methods, a line each."""
    found, settings = curves(rows), {row["method"]: row for row in rows if row["stage"] == "report"}
    common: dict[str, Curves] = {}
    for name in dict.fromkeys(BASELINES.get(method, method) for method in found):
        common |= restricted({m: each for m, each in found.items() if BASELINES.get(m, m) == name})
    lines = []
    for method, each in found.items():
        line = {
            "method": METHOD_NAMES[method],
            "learning rate": f"{settings[method]['lr']:g}",
            "level": settings[method]["level"],
            **_over_common_seeds(method, common),
        }
        baseline = found.get(BASELINES.get(method, ""))
        pairs = len(each.seeds) if baseline is None else len(set(each.seeds) & set(baseline.seeds))
        line |= {"seeds": pairs, **(against(baseline, each) if baseline and pairs else dict.fromkeys(_AGAINST, ""))}
        lines.append({**line, "seconds": f"{np.median(each.seconds):.0f}"})
    return lines


def _over_common_seeds(method: str, common: Mapping[str, Curves]) -> Row:
    """The final loss and its difference from the baseline's, over the seeds of `common`, as text."""
    if method not in common:
        return dict.fromkeys(_COMMON, "")
    each, baseline = common[method], common.get(BASELINES.get(method, ""))
    less = "" if baseline is None else nats(difference(baseline, each)) if len(each.seeds) > 1 else "one seed"
    return dict(zip(_COMMON, (_final(each), less), strict=True))


def _final(each: Curves) -> str:
    if lost := int(np.isnan(each.final).sum()):
        return f"diverged in {lost} of {len(each.seeds)}"
    spread = f" ± {each.final.std(ddof=1):.4f}" if len(each.seeds) > 1 else ""
    return f"{each.final.mean():.4f}{spread} ({len(each.seeds)})"


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
