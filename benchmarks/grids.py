"""The table of a grid of learning rates: each method at its own best, beside the one without a clip at its own."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from entryclip.lab.paper.holm import holm
from entryclip.lab.paper.intervals import paired_p
from entryclip.lab.paper.paired_claims import interval_in_words
from entryclip.lab.paper.rate_grid.bands import band_differences
from entryclip.lab.paper.rate_grid.comparison import Grid, arm_name
from entryclip.lab.paper.rate_grid.study import Cell


def grid_lines(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each method: what its tuning saw, its best cell, and there its loss on the reported seeds."""
    grid = Grid.from_rows(rows)
    arms, baselines = list(grid.best), {arm: grid.baseline_of(arm) for arm in grid.best}
    apart = {arm: grid.differences(grid.best[arm], other) for arm, other in baselines.items() if other is not None}
    chances = dict(zip(apart, holm([paired_p(each) for each in apart.values()]), strict=True))
    return [
        {
            "method": arm_name(arm, arms),
            "tuning": "; ".join(
                f"{_place(cell, grid)}: {_mean(grid.losses[cell]['tuning'])}" for cell in grid.cells_of(arm)
            ),
            "best": _place(cell, grid),
            "final loss": _mean(grid.losses[cell]["report"], spread=True),
            "less without a clip": interval_in_words(apart[arm]) if arm in apart else "",
            f"p, Holm over {len(apart)}": f"{chances[arm]:.2g}" if arm in chances else "",
        }
        for arm, cell in grid.best.items()
    ]


def band_lines(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each band of tokens: the loss without a clip, and with each method less that."""
    lines: dict[str, dict[str, Any]] = {}
    found = band_differences(rows)
    arms = list(dict.fromkeys(each.arm for each in found))
    for each in found:
        line = lines.setdefault(
            each.band, {"occurrences per million": each.band, "tokens measured": f"{each.tokens:,}"}
        )
        line.setdefault(arm_name(each.baseline.arm), f"{each.unclipped:.4f}")
        line[f"{arm_name(each.arm, arms)}, less that"] = interval_in_words(each.differences)
    return list(lines.values())


def _place(cell: Cell, grid: Grid) -> str:
    """The rate of a cell, with its warm-up where the grid has several."""
    several = len({each.warmup for each in grid.losses}) > 1
    return f"{cell.lr:g}" + (f" after {cell.warmup} steps of warm-up" if several and cell.warmup else "")


def _mean(losses: Mapping[int, float], *, spread: bool = False) -> str:
    values = list(losses.values())
    if not values:
        return ""
    text = f"{fmean(values):.4f}"
    if not spread:
        return text
    return f"{text} ± {stdev(values):.4f} ({len(values)} seeds)" if len(values) > 1 else f"{text} (one seed)"
