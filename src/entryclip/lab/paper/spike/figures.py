"""The figures: the loss around the corrupted batches, and the entry of the update that stands out."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from statistics import fmean
from typing import TYPE_CHECKING

from ...engine.study import Row
from ..lm_methods import METHOD_LOOKS, METHOD_NAMES, PUBLISHED
from .replays import CORRUPTION_NAMES, Comparison, Replay, comparisons

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTIONS = {
    "spike": "The loss on the batches around the corrupted ones (grey), mean over the seeds. All methods on one "
    "optimizer see the same batches. They go on from the same checkpoint, but for auto() and the methods that others "
    "published, which judge by the past and act from the first step.",
    "entry": "The update's entries, in the matrix where one stands out most after the first corrupted batch, as "
    "multiples of their quantile; the ring is around the entry that stands out.",
}
_SHOWN_BEFORE = 20  # steps


def figures(rows: Sequence[Row]) -> "Mapping[str, Figure]":
    """Draw `spike` and, where AdamW was run, `entry`."""
    made = {"spike": _losses(comparisons(rows))}
    return {**made, "entry": _entry(rows)} if any(row["kind"] == "entry" for row in rows) else made


def _losses(found: Sequence[Comparison]) -> "Figure":
    """A row for each corruption; columns for each optimizer's clips and, apart, for the methods that others published.

    The optimizer without a clip is in all of its columns.
    """
    from ...engine.figures import panels

    columns = _columns(found)
    corruptions = list(dict.fromkeys(each.corruption for each in found))
    figure, axes = panels(len(columns), rows=len(corruptions), width=5.4, height=3.8)
    cells = [(corruption, column) for corruption in corruptions for column in columns]
    for axis, (corruption, methods) in zip(axes, cells, strict=True):
        for each in [each for each in found if each.corruption == corruption and each.method in methods]:
            _curve(axis, each)
        axis.set_title(f"{METHOD_NAMES[methods[0]]}, {CORRUPTION_NAMES[corruption]}")
        axis.set(xlabel="steps after the first corrupted batch", ylabel="loss of the step's batch")
        axis.legend(frameon=False, fontsize=7)
    return figure


def _columns(found: Sequence[Comparison]) -> list[list[str]]:
    """The methods of each column, that without a clip first."""
    columns = []
    for base in dict.fromkeys(each.base for each in found):
        others = dict.fromkeys(each.method for each in found if each.base == base and each.method != base)
        for published in (False, True):
            methods = [method for method in others if (method in PUBLISHED) is published]
            if methods or not published:
                columns.append([base, *methods])
    return columns


def _curve(axis: "Axes", comparison: Comparison) -> None:
    """The mean over the seeds that got so far, and the corrupted steps in grey behind the plain method."""
    columns = list(zip_longest(*map(_whole, comparison.replays)))
    means = [
        fmean(loss for loss in column if loss is not None) for column in columns if any(x is not None for x in column)
    ]
    steps = range(-_shown(comparison.replays[0]), len(means) - _shown(comparison.replays[0]))
    look = METHOD_LOOKS.get(comparison.method, {})
    axis.plot(steps, means, label=METHOD_NAMES[comparison.method], lw=1.3, **look)
    if comparison.method == comparison.base:
        spoiled = [step.step for step in comparison.replays[0].steps if step.corrupted]
        axis.axvspan(min(spoiled) - 0.5, max(spoiled) + 0.5, color="#dddddd", lw=0)


def _shown(replay: Replay) -> int:
    return min(_SHOWN_BEFORE, len(replay.before))


def _whole(replay: Replay) -> list[float | None]:
    """The last losses before the checkpoint, and all after it."""
    return [*replay.before[-_SHOWN_BEFORE:], *(step.loss for step in replay.steps)]


def _entry(rows: Sequence[Row]) -> "Figure":
    """The entries around the largest, with the rows and columns of the whole matrix on the axes."""
    from ...engine.figures import panels

    figure, (axis,) = panels(1, width=5.4, height=4.0)
    (entry,) = [row for row in rows if row["kind"] == "entry"]
    (matrix,) = [row for row in rows if row["kind"] == "matrix"]
    row, column = entry["place"][-2:]
    top, left = row - matrix["row"] - 0.5, column - matrix["column"] - 0.5
    extent = (left, left + len(matrix["values"][0]), top + len(matrix["values"]), top)
    image = axis.imshow(matrix["values"], cmap="magma", aspect="auto", extent=extent)
    axis.plot([column], [row], "o", ms=12, mfc="none", color="white")
    axis.grid(visible=False)
    axis.set(xlabel="column", ylabel="row")
    where = f"row {row}, column {column}: {entry['multiple']:.1f} times the quantile"
    axis.set_title(f"{entry['name']}\n{where}", fontsize=9)
    figure.colorbar(image, ax=axis, label="|update| / its .995 quantile")
    return figure
