"""The table of the study: a line for every corruption and method."""

from collections.abc import Mapping, Sequence

from ...engine.study import Row
from ..intervals import nats
from ..lm_methods import METHOD_NAMES
from ..spike_score import DEVIATIONS, WINDOW
from .replays import CORRUPTION_NAMES, comparisons

CAPTION = (
    "The mean loss of ten steps before the corrupted batches; its rise to ten clean steps after them, in nats; less "
    "that of the same optimizer without a clip; 95 % intervals over paired seeds. Spike score: the percentage of clean "
    "steps after the corrupted batches whose loss is at least so many standard deviations away from the mean of the "
    f"{WINDOW} before"
)


def tables(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """The comparisons, a line each."""
    lines: list[Row] = []
    for each in comparisons(rows):
        line: Row = {
            "corruption": CORRUPTION_NAMES[each.corruption],
            "method": METHOD_NAMES[each.method],
            "seeds": len(each.replays),
            "loss before": f"{each.loss_before():.2f}",
            "rise": nats(each.rise()),
            "less unclipped": "" if each.method == each.base else nats(each.less_plain()),
        }
        lines.append(line | {f"score at {k:g} sd": f"{each.score(k):.1f} %" for k in DEVIATIONS})
    return {CAPTION: lines} if lines else {}
