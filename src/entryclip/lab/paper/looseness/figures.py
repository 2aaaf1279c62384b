"""Figure of the bounds beside the exact values, over the threshold and over alpha."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...engine.study import Row
from ..entrywise import OPERATORS
from .study import EntryBounds, RateBounds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTIONS = {
    "looseness": "Relative bias (a) and variance (b) of a clipped entry over the threshold: the paper's bounds (thick) "
    "and the exact values at the worst entry (thin). Vertical lines: the smallest thresholds of the theorems, left "
    "post-clipping, right pre-clipping. (c) Each theorem's rate over the one with exact bias and variance.",
}


def figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    """Draw bounds and exact values over the threshold, and the rates over alpha."""
    from ...engine.figures import panels

    entries, rates = EntryBounds.from_rows(rows), RateBounds.from_rows(rows)
    figure, (bias, spread, rate) = panels(3, height=3.4)
    for operator in OPERATORS:
        _plot_entries(bias, spread, operator, [each for each in entries if each.operator == operator])
        _plot_rates(rate, operator, [each for each in rates if each.operator == operator])
    bias.set(xscale="log", yscale="log", xlabel="threshold", title=r"(a) relative bias $\rho$", ylim=(1e-4, 3))
    spread.set(xscale="log", yscale="log", xlabel="threshold", title="(b) variance")
    rate.set(xlabel=r"fraction $\alpha$", title="(c) rate / rate with exact values", ylim=(1, None))
    for axis in (bias, rate):
        axis.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    return {"looseness": figure}


def _plot_entries(bias: "Axes", spread: "Axes", operator: str, entries: list[EntryBounds]) -> None:
    from ...engine.figures import COLOURS

    colour = COLOURS[OPERATORS[operator].__name__]
    x = [entry.threshold for entry in entries]
    rho = [(entry.rho, entry.exact_rho) for entry in entries]
    variance = [(entry.variance, entry.exact_variance) for entry in entries]
    for axis, values in ((bias, rho), (spread, variance)):
        bound, exact = zip(*values, strict=True)
        axis.plot(x, bound, color=colour, lw=2.2, label=f"{operator}, bound")
        axis.plot(x, exact, color=colour, lw=1, label=f"{operator}, exact")
        for smallest in (entries[0].post_threshold, entries[0].pre_threshold):
            axis.axvline(smallest, color=colour, lw=0.8, ls=":")
        axis.plot([], [], color=colour, lw=0.8, ls=":", label=f"{operator}, least thresholds")


def _plot_rates(axis: "Axes", operator: str, rates: list[RateBounds]) -> None:
    from ...engine.figures import COLOURS, LINES

    name = OPERATORS[operator].__name__
    for stage, marker in (("post", "o"), ("pre", "s")):
        mine = [rate for rate in rates if rate.stage == stage]
        x, y, label = [rate.alpha for rate in mine], [rate.cost for rate in mine], f"{stage}, {operator}"
        axis.plot(x, y, color=COLOURS[name], ls=LINES[name], marker=marker, ms=4, lw=1.5, label=label)
