"""The gain of the best clip before and after scales are divided out: by kind of matrix and stage, and of controls."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...engine.study import Row
from ..palette import BAND, BLUE, GREY, INK, RED
from .claims import BOUND
from .controls import CONTROLS, HEAVY
from .study import DIGITS, ControlRow, GradientRow, Measured

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTIONS = {
    "gain": "What the best entry-wise clip would gain (1: nothing; 2: as much as twice the batch), on gradients as "
    "they are (red) and with the scales of rows and columns divided out (blue): every matrix of every run (dots) and "
    "the median (bar), by kind of matrix and step of training; left of each group the gradient of a batch, right the "
    "noise of single samples. Above: controls whose answer is known. Grey: gains up to 1.1. Gains above 1000 are drawn "
    "there.",
    "shares": "Where the variance of log|x| comes from, by kind of matrix: rows, columns, and the rest. The rest alone "
    "would be 1.23 for Gaussian entries (number above the bar: its median); heavy tails make it larger.",
}
_LARGEST = 1e3  # gains beyond are drawn here: a few, of the head, are in the millions
_SIDES = {"raw": RED, "standardized": BLUE}


def figures(rows: Sequence[Row]) -> "dict[str, Figure]":
    """Draw a figure for each caption."""
    found = GradientRow.from_rows(rows)
    return {"gain": _gain(found, ControlRow.from_rows(rows)), "shares": _shares(found)}


def _gain(rows: Sequence[GradientRow], controls: Sequence[ControlRow]) -> "Figure":
    """Draw the controls and the digits above, the language model below."""
    from ...engine.figures import panels

    models = {
        "the language model": [row for row in rows if row.corpus != DIGITS],
        "a convolutional network on digits": [row for row in rows if row.corpus == DIGITS],
    }
    present = {name: those for name, those in models.items() if those}
    figure, axes = panels(1, rows=1 + len(present), width=12, height=3.1)
    for place, law in enumerate(CONTROLS):
        _column(axes[0], place, [row for row in controls if row.law == law], 0.3)
    axes[0].axvline(len(CONTROLS) - len(HEAVY) - 0.5, color=GREY, lw=0.8, ls=":")
    axes[0].set_xticks(range(len(CONTROLS)), list(CONTROLS))
    axes[0].set_title("controls: Gaussian entries | heavy-tailed entries", fontsize=10)
    for axis, (name, those) in zip(axes[1:], present.items(), strict=True):
        _layers(axis, those)
        axis.set_title(f"{name}: steps {', '.join(map(str, _steps(those)))} from left to right", fontsize=10)
    for axis in axes:
        axis.axhspan(0.9, BOUND, color=BAND, alpha=0.3, lw=0, zorder=0)
        axis.set(yscale="log", ylim=(0.9, _LARGEST * 1.3), ylabel="gain of the best clip")
        axis.grid(axis="x", visible=False)
    handles, names = _legend()
    axes[0].legend(handles, names, frameon=False, fontsize=9, loc="upper left")
    return figure


def _layers(axis: "Axes", rows: Sequence[GradientRow]) -> None:
    """Draw a group for each kind of matrix: the batch at each step, then the noise at each step."""
    layers, steps = list(dict.fromkeys(row.layer for row in rows)), _steps(rows)
    width = 0.8 / (2 * len(steps))
    for i, layer in enumerate(layers):
        for half, source in enumerate(("batch", "noise")):
            places = i + (half - 0.5) * 0.44 + width * (np.arange(len(steps)) - (len(steps) - 1) / 2)
            for step, place in zip(steps, places.tolist(), strict=True):
                here = [row for row in rows if (row.layer, row.source, row.step) == (layer, source, step)]
                _column(axis, place, here, 0.42 * width)
        axis.axvline(i + 0.5, color=BAND, lw=0.6)
    axis.set_xticks(range(len(layers)), [f"{layer}\nbatch | noise" for layer in layers], fontsize=8)
    axis.set_xlim(-0.5, len(layers) - 0.5)


def _steps(rows: Sequence[GradientRow]) -> list[int]:
    return sorted({row.step for row in rows})


def _column(axis: "Axes", place: float, rows: Sequence[Measured], half_width: float) -> None:
    """Draw the gains of some matrices side by side: as they are to the left, standardised to the right."""
    for side, (name, colour) in zip((-0.5, 0.5), _SIDES.items(), strict=True):
        gains = np.clip([getattr(row, name) for row in rows], None, _LARGEST)
        if len(gains):
            x = place + side * half_width
            axis.plot(np.full(len(gains), x), gains, "o", ms=2.5, color=colour, alpha=0.35, mew=0, rasterized=True)
            ends = [x - half_width / 2, x + half_width / 2]
            axis.plot(ends, [np.median(gains)] * 2, color=colour, lw=2.2, solid_capstyle="butt")


def _legend() -> "tuple[list[Artist], list[str]]":
    from matplotlib.lines import Line2D

    names = ("as they are", "scales of rows and columns divided out")
    return [Line2D([], [], color=colour, marker="o", ms=4, lw=2) for colour in _SIDES.values()], list(names)


def _shares(rows: Sequence[GradientRow]) -> "Figure":
    """Draw stacked bars of the medians of the three shares, for the batch's gradient and the noise."""
    from ...engine.figures import panels

    layers = list(dict.fromkeys(row.layer for row in rows))
    figure, axes = panels(1, rows=2, width=12, height=2.6)
    for axis, (source, name) in zip(axes, (("batch", "a batch's gradient"), ("noise", "noise")), strict=True):
        base = np.zeros(len(layers))
        for side, colour in (("rows", RED), ("columns", BLUE), ("rest", BAND)):
            parts = np.array([_typical(rows, layer, source, f"{side}_share") for layer in layers])
            axis.bar(range(len(layers)), parts, bottom=base, color=colour, width=0.6, label=side)
            base += parts
        for i, layer in enumerate(layers):
            axis.text(i, base[i] + 0.03, f"{_typical(rows, layer, source, 'rest'):.2f}", ha="center", color=INK)
        axis.set_xticks(range(len(layers)), [layer.replace(" ", "\n") for layer in layers], fontsize=8)
        axis.set(ylim=(0, 1.25), ylabel="median share", title=name)
        axis.grid(axis="x", visible=False)
    axes[0].legend(frameon=False, ncols=3, fontsize=9, loc="lower right", bbox_to_anchor=(1, 1), borderpad=0)
    return figure


def _typical(rows: Sequence[GradientRow], layer: str, source: str, field: str) -> float:
    values = [getattr(row, field) for row in rows if (row.layer, row.source) == (layer, source)]
    return float(np.median(values)) if values else 0.0
