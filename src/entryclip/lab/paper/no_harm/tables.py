"""The table of the study: a line for every method."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from ...engine.study import Row
from ..intervals import nats
from ..lm_methods import METHOD_NAMES
from .claims import interval_of, pairs_of
from .study import NoHarmRun

CAPTION = (
    "Final validation loss, mean ± standard deviation over seeds; less that without a clip, with the 95 % interval "
    "over paired seeds; pairs equal to the bit; and per run what auto() did: steps in which an entry changed, "
    "entries that changed, matrix-steps that the operator clipped, and those that only the guard touched"
)


def tables(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """The runs, a line for every method."""
    runs, pairs = NoHarmRun.from_rows(rows), pairs_of(rows)
    lines: list[Row] = []
    for method in dict.fromkeys(run.method for run in runs):
        own = [run for run in runs if run.method == method]
        line: Row = {
            "method": METHOD_NAMES[method],
            "learning rate": f"{own[0].lr:g}",
            "seeds": len(own),
            "final loss": _final(own),
            "less unclipped": nats(interval_of(pairs[method])) if method in pairs else "",
            "equal": pairs[method].equal if method in pairs else "",
        }
        for name in ("steps_changed", "entries_changed", "matrix_steps_clipped", "matrix_steps_guarded"):
            mean = fmean(getattr(run, name) for run in own)
            line[name.replace("_", " ")] = f"{mean:.4g}" if method in pairs else ""
        lines.append(line)
    return {CAPTION: lines} if lines else {}


def _final(runs: Sequence[NoHarmRun]) -> str:
    losses = [run.loss for run in runs if run.loss is not None]
    if lost := len(runs) - len(losses):
        return f"diverged in {lost} of {len(runs)}"
    return f"{fmean(losses):.4f}" + (f" ± {stdev(losses):.4f}" if len(losses) > 1 else "")
