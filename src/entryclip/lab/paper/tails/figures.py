"""Figure of the Hill plots of the laws, and of the verdicts as bars."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...engine.study import Row
from ..palette import BLUE, GREEN, GREY, INK, OLIVE, PALE, RED
from .claims import accuracies, case_label
from .study import CASES, TRUE_INDEX, TailEstimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTIONS = {
    "tails": "(a) Hill plots of one draw of each law: the index from the largest k entries; the mark is the index "
    "that is reported, with its interval. A power law's plot settles at its index, the others keep rising to the "
    "left. (b) Verdicts over all draws; x 1 and x 3: 5 % of the law at this scale in a standard Gaussian bulk.",
}
LAW_COLOURS = dict(zip(TRUE_INDEX, (GREY, OLIVE, GREEN, BLUE, RED), strict=True))


def figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    """Draw the Hill plots and the shares of right and wrong verdicts."""
    from ...engine.figures import panels

    estimates = TailEstimate.from_rows(rows)
    figure, (hill, bars) = panels(2, width=5.2, height=4.0)
    _plot_hill(hill, [each for each in estimates if each.plot_k])
    _plot_verdicts(bars, estimates)
    return {"tails": figure}


def _plot_hill(axis: "Axes", estimates: list[TailEstimate]) -> None:
    for each in estimates:
        colour = LAW_COLOURS[each.law]
        axis.plot(each.plot_k or [], each.plot_index or [], color=colour, lw=1.8, label=_in_mathematics(each.law))
        ends = [[each.index - each.low], [each.high - each.index]]
        axis.errorbar(each.k, each.index, ends, color=colour, marker="o", ms=6, capsize=3)
    for truth in (1, 2, 4):
        axis.axhline(truth, color=INK, lw=0.8, ls=":")
    axis.plot([], [], color=INK, lw=0.8, ls=":", label="true index")
    axis.set(xscale="log", yscale="log", ylim=(0.7, 60), xlabel="k largest entries", title="(a) Hill plots")
    axis.set_yticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
    axis.minorticks_off()
    axis.set_ylabel("index")
    axis.legend(frameon=False, ncols=2, loc="upper right")


def _plot_verdicts(axis: "Axes", estimates: list[TailEstimate]) -> None:
    found = accuracies(estimates)
    right, wrong = (np.array([getattr(found[case], share) for case in CASES]) for share in ("right", "wrong"))
    place = np.arange(len(CASES))
    axis.barh(place, right, color=GREEN, label="right")
    axis.barh(place, 1 - right - wrong, left=right, color=PALE, label="undecided")
    axis.barh(place, wrong, left=1 - wrong, color=RED, label="wrong")
    axis.set_yticks(place, [_in_mathematics(case_label(case)) for case in CASES])
    axis.invert_yaxis()
    axis.set(xlim=(0, 1), xlabel="share of the draws", title="(b) verdicts")
    axis.grid(visible=False)
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _in_mathematics(label: str) -> str:
    """Typeset Student's t with its degrees of freedom as a subscript."""
    return label.replace("t_4", "$t_4$").replace("t_2", "$t_2$")
