"""Figure of the measured averages against the theorems' bounds."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ....theory.entry import OPERATOR_BOUNDS
from ...engine.study import Row
from ..palette import GREY, RED
from .claims import power_of_iterations
from .study import Descent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTIONS = {
    "convergence": "The average that each theorem bounds, over growing runs: points with bars are the median and the "
    "range over seeds, solid lines the theorem, dash-dotted lines (exact lemma) the same with the exact bias and "
    "variance, the dotted line the value at the start. Post-clipping: the mean of the squared Frobenius norm over K "
    "iterations; pre-clipping: the mean nuclear norm over T iterations with N samples each.",
}
BATCH_COLOURS = ("#e0a04f", RED, "#6b1f57")


def figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    """Draw measured averages and bounds, one panel per theorem."""
    from ...engine.figures import panels

    runs = Descent.from_rows(rows)
    figure, axes = panels(2, rows=2, width=5.2, height=3.9)
    theorems = [(stage, operator) for stage in ("post", "pre") for operator in OPERATOR_BOUNDS]
    for axis, (stage, operator) in zip(axes, theorems, strict=True):
        axis.set_title(f"{stage}-clipping, {operator}")
        _plot_theorem(axis, stage, [run for run in runs if (run.stage, run.operator) == (stage, operator)])
    return {"convergence": figure}


def _plot_theorem(axis: "Axes", stage: str, runs: list[Descent]) -> None:
    batches = sorted({run.batch for run in runs})
    for batch, colour in zip(batches, itertools.cycle(BATCH_COLOURS if len(batches) > 1 else [RED]), strict=False):
        _plot_runs(axis, [run for run in runs if run.batch == batch], colour)
    axis.axhline(float(np.median([run.start for run in runs])), color=GREY, ls=":", lw=1.2, label="at the start")
    axis.set(xscale="log", yscale="log", xlabel="iterations K" if stage == "post" else "iterations T")
    axis.set_ylabel(r"mean $\|G\|_F^2$" if stage == "post" else r"mean $\|G\|_*$")
    sizes = sorted({run.iterations for run in runs})
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.xaxis.minorticks_off()
    axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _plot_runs(axis: "Axes", runs: list[Descent], colour: str) -> None:
    """Plot the runs of one theorem and batch: their bounds, and the median and range over the seeds."""
    sizes = sorted({run.iterations for run in runs})
    groups = [[run for run in runs if run.iterations == size] for size in sizes]
    note = f", N = {runs[0].batch}" if runs[0].stage == "pre" else ""
    axis.plot(sizes, [group[0].bound for group in groups], color=colour, lw=1.8, label="bound" + note)
    axis.plot(sizes, [group[0].sharper for group in groups], color=colour, lw=1, ls="-.", label="exact lemma" + note)
    middle = np.array([np.median([run.measured for run in group]) for group in groups])
    ends = np.array([[f(run.measured for run in group) for group in groups] for f in (min, max)])
    power, ratios = power_of_iterations(runs), [run.bound / run.measured for run in runs]
    label = f"measured{note}: slope\n{power.value:.3f} [{power.low:.3f}, {power.high:.3f}],\n"
    label += f"bound {min(ratios):.1f} to {max(ratios):.1f} times it"
    axis.errorbar(sizes, middle, yerr=np.abs(ends - middle), color=colour, fmt="o--", ms=4, lw=1, label=label)
