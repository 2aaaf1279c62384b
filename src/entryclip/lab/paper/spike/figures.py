"""The figure: the loss around the corrupted batches, and the entry of the update that stands out."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...engine.study import Row
from ..lm_methods import METHOD_LOOKS, METHOD_NAMES
from .study import SPIKE_METHODS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTIONS = {
    "spike": "Left: the loss on the batches around the corrupted ones (grey), which every method went through from "
    "the same checkpoint. Right: the update's entries in the matrix where one stands out most, as multiples of their "
    "quantile; the ring is around the entry that stands out.",
}


def figures(rows: Sequence[Row]) -> "Mapping[str, Figure]":
    """Draw `spike`."""
    from ...engine.figures import panels

    figure, (left, right) = panels(2, width=5.4, height=4.0)
    _losses(left, [row for row in rows if row["kind"] == "loss"])
    _entries(figure, right, rows)
    return {"spike": figure}


def _losses(axis: "Axes", rows: Sequence[Row]) -> None:
    for method in SPIKE_METHODS:
        those = [row for row in rows if row["method"] == method and row["step"] >= -20]
        steps, losses = [row["step"] for row in those], [row["loss"] for row in those]
        axis.plot(steps, losses, label=METHOD_NAMES[method], lw=1.4, **METHOD_LOOKS[method])
    spoiled = [row["step"] for row in rows if row["corrupted"]]
    axis.axvspan(min(spoiled) - 0.5, max(spoiled) + 0.5, color="#dddddd", lw=0)
    axis.set(xlabel="steps after the first corrupted batch", ylabel="loss of the step's batch")
    axis.legend(frameon=False, fontsize=8)


def _entries(figure: "Figure", axis: "Axes", rows: Sequence[Row]) -> None:
    """The entries around the largest, with the rows and columns of the whole matrix on the axes."""
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
