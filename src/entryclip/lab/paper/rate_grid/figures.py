"""The figures of the grid: final loss by learning rate and by token frequency, and differences from no clip."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine.study import Row
from ..intervals import student_interval
from ..lm_methods import METHOD_LOOKS, METHOD_NAMES
from ..palette import BLUE, GREEN, INK, OLIVE, ORANGE, RED
from .bands import LEAST_TOKENS, BandDifferences, band_differences
from .comparison import Arm, Grid, arm_name, baseline_name
from .study import Cell, Stage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTIONS = {
    "rate_grid": "Above: mean final validation loss over seeds, by learning rate of the hidden matrices. Below: the "
    "same less the loss without a clip at its best rate and warm-up, seed by seed, with 95 % intervals. Filled points "
    "are of seeds that had no part in the choice of the best, hollow ones of the tuning's; a line joins means over "
    "the same seeds. Rings: the best of each method by the tuning's seeds. Dashed: with warm-up.",
    "bands": "The validation loss less that without a clip, each at its best, on the tokens that occur so many times "
    "per million in the training text: means over the reported seeds, with 95 % intervals. Bands with fewer than 1000 "
    "tokens of the validation text are left out, unless all are so small.",
}
_MARKS = "osD^vP"
_SPARE = (RED, BLUE, GREEN, ORANGE, OLIVE)  # of methods that have no colour of their own


def figures(rows: Sequence[Row]) -> "dict[str, Figure]":
    """Draw `rate_grid`, a column for each method without a clip and those that are compared with it; and `bands`."""
    return {"rate_grid": _draw_grid(rows)} | (
        {"bands": _draw_bands(found)} if (found := band_differences(rows)) else {}
    )


def _draw_grid(rows: Sequence[Row]) -> "Figure":
    from ...engine.figures import panels

    grid = Grid.from_rows(rows)
    families: dict[str, list[Arm]] = {}
    for arm in grid.best:
        families.setdefault(baseline_name(arm[0]), []).append(arm)
    figure, axes = panels(len(families) or 1, rows=2, width=5.2, height=3.6)
    for i, (name, arms) in enumerate(families.items()):
        above, below = axes[i], axes[i + len(families)]
        baseline = grid.best.get((name, None))
        for number, arm in enumerate(arms):
            _draw(above, below, grid, arm, arms, number, baseline)
        rates = sorted({cell.lr for arm in arms for cell in grid.cells_of(arm)})
        for axis in (above, below):
            axis.set_xscale("log", base=2)
            axis.set_xticks(rates, labels=[f"{rate:g}" for rate in rates])
            axis.set_xticks([], minor=True)
            axis.set_xlabel("learning rate of the hidden matrices")
        above.set(title=METHOD_NAMES.get(name, name), ylabel="final validation loss")
        above.legend(frameon=False, fontsize=7)
        below.axhline(0, color=INK, lw=0.8)
        below.set_ylabel("less unclipped at its best")
    return figure


def _draw_bands(found: Sequence[BandDifferences]) -> "Figure":
    from ...engine.figures import panels

    found = [each for each in found if each.tokens >= LEAST_TOKENS] or found
    families = list(dict.fromkeys(each.baseline for each in found))
    figure, axes = panels(len(families), width=5.2, height=3.6)
    for baseline, axis in zip(families, axes, strict=True):
        here = [each for each in found if each.baseline == baseline]
        arms, bands = (list(dict.fromkeys(getattr(each, name) for each in here)) for name in ("arm", "band"))
        for number, arm in enumerate(arms):
            own = [each for each in here if each.arm == arm]
            shift = 0.12 * (number - (len(arms) - 1) / 2)
            places = [bands.index(each.band) + shift for each in own]
            intervals = [student_interval(each.differences) for each in own]
            colour, mark = _colour(arm, number), _MARKS[number % len(_MARKS)]
            axis.plot(places, [each.value for each in intervals], mark, ms=5, color=colour, label=arm_name(arm, arms))
            for place, each in zip(places, intervals, strict=True):
                if math.isfinite(each.low):
                    axis.plot([place, place], [each.low, each.high], color=colour, lw=1.5)
        axis.axhline(0, color=INK, lw=0.8)
        axis.set_xticks(range(len(bands)), labels=bands)
        axis.set(
            title=f"less {arm_name(baseline.arm)}",
            xlabel="occurrences of the token per million",
            ylabel="difference of validation loss",
        )
        axis.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return figure


def _colour(arm: Arm, number: int) -> Any:
    look = METHOD_LOOKS.get(arm[0])
    return look["color"] if look else _SPARE[number % len(_SPARE)]


def _draw(
    above: "Axes", below: "Axes", grid: Grid, arm: Arm, arms: Sequence[Arm], number: int, baseline: Cell | None
) -> None:
    """Draw one method: a line for each warm-up, and where there is a baseline the differences from it."""
    colour = _colour(arm, number)
    mark = _MARKS[[each for each in arms if each[0] == arm[0]].index(arm) % len(_MARKS)]
    cells = grid.cells_of(arm)
    joined: Stage = "report" if all(_stage(grid, cell) == "report" for cell in cells) else "tuning"
    for warmup in dict.fromkeys(cell.warmup for cell in cells):
        line = sorted((cell for cell in cells if cell.warmup == warmup), key=lambda cell: cell.lr)
        style = {"color": colour, "ls": "--" if warmup else "-", "lw": 1.3, "marker": mark, "ms": 4, "mfc": "none"}
        several = len({cell.warmup for cell in cells}) > 1
        label = arm_name(arm, arms) + (f", warm-up {warmup}" if several or warmup else "")
        above.plot(*_means(grid, line, joined), label=label, **style)
        above.plot(*_means(grid, line, "report"), mark, ms=4, color=colour)
        for rate, mean in zip(*_means(grid, [cell for cell in line if grid.best[arm] == cell], joined), strict=True):
            above.plot([rate], [mean], "o", ms=10, mfc="none", color=colour)
        if baseline is not None:
            for cell in line:
                shift = 2 ** (0.03 * (number - (len(arms) - 1) / 2) + (0.015 if warmup else 0))
                _difference(below, cell.lr * shift, colour, mark, grid, cell, baseline)


def _means(grid: Grid, cells: Sequence[Cell], stage: Stage) -> tuple[list[float], list[float]]:
    """Return the rates of the cells that were run with a stage's seeds, and their mean losses."""
    found = [
        (cell.lr, float(np.mean(list(grid.losses[cell][stage].values())))) for cell in cells if grid.losses[cell][stage]
    ]
    return [rate for rate, _ in found], [mean for _, mean in found]


def _stage(grid: Grid, cell: Cell) -> Stage:
    return "report" if grid.losses[cell]["report"] else "tuning"


def _difference(axis: "Axes", x: float, colour: str, mark: str, grid: Grid, cell: Cell, baseline: Cell) -> None:
    found = grid.differences(cell, baseline, _stage(grid, cell))
    if not len(found) or not np.isfinite(found).all():
        return
    interval = student_interval(found)
    if math.isfinite(interval.low):
        axis.plot([x, x], [interval.low, interval.high], color=colour, lw=1.5)
    axis.plot([x], [interval.value], mark, ms=4, color=colour, mfc=colour if _stage(grid, cell) == "report" else "none")
    if grid.best[cell.arm] == cell:
        axis.plot([x], [interval.value], "o", ms=10, mfc="none", color=colour)
