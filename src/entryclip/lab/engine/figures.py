"""The common style of all figures, and how they are saved: as SVG for the page and as PNG."""

import io
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # figures are files; no window is ever opened

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .files import write_bytes
from .printable import printable

# The paper's colours for the two operators; a colour-blind reader tells them apart by lightness and line style too.
COLOURS = {
    "none": "#555555",
    "hard_clip": "#1f5fa8",
    "smooth_shrinkage": "#c8352b",
    "soft_threshold": "#2f8f5b",
    "global_clip": "#8a6d1c",
}
LINES = {
    "none": (0, (1, 2)),
    "hard_clip": (0, (5, 2)),
    "smooth_shrinkage": "solid",
    "soft_threshold": "dashdot",
    "global_clip": "dotted",
}

_GAP = 0.09  # inches around each panel, so that its labels do not touch those of its neighbours
_STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "svg.fonttype": "path",
    "svg.hashsalt": "entryclip",
}


def panels(count: int, *, rows: int = 1, width: float = 4.2, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    """A figure with `rows` x `count` panels in the common style; the panels are listed row by row."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width * count, height * rows), layout="constrained")
        figure.get_layout_engine().set(w_pad=_GAP, h_pad=_GAP)  # type: ignore[union-attr, call-arg]
        axes = figure.subplots(rows, count, squeeze=False).ravel()
    return figure, list(axes)


def literal(name: str) -> str:
    """Return a name that others chose as a label that shows it as it is: matplotlib would take `$` for mathematics.

    >>> literal("blocks.$x$")
    'blocks.\\\\$x\\\\$'
    """
    return printable(name).replace("$", r"\$")


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `name.svg` and `name.png` into the folder; the same figure gives the same bytes."""
    paths = []
    for suffix, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
        buffer = io.BytesIO()
        with matplotlib.rc_context(_STYLE):
            figure.savefig(buffer, format=suffix, dpi=200, metadata=metadata)
        paths.append(folder / f"{name}.{suffix}")
        write_bytes(paths[-1], buffer.getvalue())
    return paths
