"""The tables of the grid: a line for every cell, and for every method a line of its losses by token frequency."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev

from ...engine.study import Row
from ..paired_claims import interval_in_words
from .bands import BandDifferences, band_differences
from .comparison import Grid, arm_name
from .study import Cell, RateGridRun

CAPTION = (
    "Every cell of the grid: mean final validation loss ± standard deviation over the seeds of the tuning, which chose "
    "the best cell of each method, and over those reported, with their number; less that of the method without a clip "
    "at its own best, over the reported seeds that both have, with the 95 % interval"
)
BANDS_CAPTION = (
    "The validation loss less that without a clip, each at its best, on tokens by how often they occur per million in "
    "the training text: means over the reported seeds that both have, with 95 % intervals; the first line of a method "
    "without a clip has its loss, and in brackets the number of tokens"
)
END_CAPTION = (
    "Measured after the last step of each method's best cell, the median over the reported seeds: the gain of the best "
    "entry-wise clip on the gradient of a batch (median over the hidden matrices; 1: no clip helps), as it is and with "
    "the scales of rows and columns divided out; and the percentage of training losses, after the first 50, that are 7 "
    "standard deviations or more away from the mean of the 50 before"
)


def tables(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """The cells, a line each; the bands of tokens; and what was measured after the last step."""
    grid = Grid.from_rows(rows)
    found = {
        CAPTION: [_line(cell, grid) for cell in grid.losses],
        BANDS_CAPTION: _band_lines(band_differences(rows)),
        END_CAPTION: _end_lines(RateGridRun.from_rows(rows), grid),
    }
    return {caption: lines for caption, lines in found.items() if lines}


def _band_lines(found: Sequence[BandDifferences]) -> list[Row]:
    lines: dict[str, Row] = {}
    arms = list(dict.fromkeys(each.arm for each in found))
    for each in found:
        baseline = arm_name(each.baseline.arm)
        lines.setdefault(baseline, {"method": baseline})[each.band] = f"{each.unclipped:.4f} ({each.tokens:,})"
        name = arm_name(each.arm, arms)
        lines.setdefault(name, {"method": name})[each.band] = interval_in_words(each.differences)
    return list(lines.values())


def _end_lines(runs: Sequence[RateGridRun], grid: Grid) -> list[Row]:
    lines = []
    for arm, cell in grid.best.items():
        own = [run for run in runs if run.cell == cell and run.stage == "report"]
        raw, standardized, spikes = (
            [value for run in own if (value := getattr(run, name)) is not None]
            for name in ("raw_gain", "standardized_gain", "spike_score")
        )
        if raw and standardized:
            line: Row = {"method": arm_name(arm, list(grid.best)), "raw gain": f"{median(raw):.2f}"}
            line["standardised gain"] = f"{median(standardized):.2f}"
            lines.append({**line, "spikes, %": f"{median(spikes):.2f}" if spikes else ""})
    return lines


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
