"""The table of the grid: a line for every cell."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from ...engine.study import Row
from ..paired_claims import interval_in_words
from .comparison import Grid, arm_name
from .study import Cell

CAPTION = (
    "Every cell of the grid: mean final validation loss ± standard deviation over the seeds of the tuning, which chose "
    "the best cell of each method, and over those reported, with their number; less that of the method without a clip "
    "at its own best, over the reported seeds that both have, with the 95 % interval"
)


def tables(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """The cells, a line each."""
    grid = Grid.from_rows(rows)
    lines = [_line(cell, grid) for cell in grid.losses]
    return {CAPTION: lines} if lines else {}


def _line(cell: Cell, grid: Grid) -> Row:
    baseline = grid.baseline_of(cell.arm) or grid.best[cell.arm]
    less = "" if cell == baseline or not grid.losses[cell]["report"] else grid.differences(cell, baseline)
    return {
        "method": arm_name(cell.arm, list(grid.best)),
        "learning rate": f"{cell.lr:g}",
        "warm-up": cell.warmup,
        "tuning": _mean(grid.losses[cell]["tuning"]),
        "best": "yes" if grid.best[cell.arm] == cell else "",
        "reported": _mean(grid.losses[cell]["report"]),
        "less unclipped at its best": less if isinstance(less, str) else interval_in_words(less),
    }


def _mean(losses: Mapping[int, float]) -> str:
    finite = [loss for loss in losses.values() if loss == loss]
    if len(finite) < len(losses):
        return f"diverged in {len(losses) - len(finite)} of {len(losses)}"
    if not finite:
        return ""
    return f"{fmean(finite):.4f}" + (f" ± {stdev(finite):.4f}" if len(finite) > 1 else "") + f" ({len(finite)})"
