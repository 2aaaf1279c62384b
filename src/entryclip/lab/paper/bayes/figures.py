"""Figures of the errors over the Bayes estimator's, and of the estimators themselves."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...engine.figure_ids import KEEP_COLOURS
from ...engine.study import Row
from .claims import Excess, excess
from .study import CurvePoint, EstimatorError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTIONS = {
    "bayes": "Mean squared error of an entry over the Bayes estimator's, each operator at its best threshold and gain, "
    "over the fraction and the scale of the heavy part, one row per noise-to-signal ratio. 1 is optimal; on the dashed "
    "line the error is 5 % above that. Right: the ratio of the two, red where smooth shrinkage is better.",
    "estimators": "The Bayes estimator and the operators at their best threshold and gain, as functions of the entry. "
    "The Bayes estimator falls like 1/y far out: smooth shrinkage falls faster, hard clipping does not fall.",
}


class ColourScale(NamedTuple):
    """A matplotlib colour map and the values at its two ends."""

    name: str
    low: float
    high: float


EXCESS, RATIO = ColourScale("viridis", 1.0, 1.3), ColourScale("RdBu", 0.8, 1.2)


def figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    """Draw the errors over the grid of noises, and the estimators as functions of the entry."""
    return {"bayes": _errors(EstimatorError.from_rows(rows)), "estimators": _estimators(CurvePoint.from_rows(rows))}


def _errors(errors: list[EstimatorError]) -> "Figure":
    from ...engine.figures import panels

    table, sigmas = excess(errors), sorted({error.sigma for error in errors})
    figure, axes = panels(3, rows=len(sigmas), width=3.9, height=3.0)
    for i, sigma in enumerate(sigmas):
        (alphas, scales, hard), (_, _, smooth) = (_grid(table, method, sigma) for method in ("hard", "smooth"))
        left, middle, right = axes[3 * i : 3 * i + 3]
        note = rf"$\sigma = {sigma:g}\,\sigma_x$"
        for axis, values, name in ((left, hard, "hard clipping"), (middle, smooth, "smooth shrinkage")):
            _heat_map(axis, alphas, scales, values, EXCESS)
            axis.set_title(f"{name}, {note}")
            line = axis.contour(scales, alphas, values, levels=[1.05], colors="white", linestyles="--", linewidths=1.2)
            line.set_gid(f"{KEEP_COLOURS}-{name.partition(' ')[0]}-{i}")  # white on the heatmap, also in the dark
        _heat_map(right, alphas, scales, smooth / hard, RATIO)
        right.set_title(f"smooth / hard, {note}")
    return figure


def _grid(table: Excess, method: str, sigma: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The alphas, the scales, and the excess of a method as an array of shape (alphas, scales)."""
    alphas, scales = (sorted({key[i] for key in table}) for i in (1, 2))
    values = [[table[sigma, alpha, scale][method] for scale in scales] for alpha in alphas]
    return np.array(alphas), np.array(scales), np.array(values)


def _heat_map(axis: "Axes", alphas: np.ndarray, scales: np.ndarray, values: np.ndarray, colours: ColourScale) -> None:
    name, low, high = colours
    mesh = axis.pcolormesh(scales, alphas, values, cmap=name, vmin=low, vmax=high, shading="nearest", rasterized=True)
    axis.set(xscale="log", yscale="log", xlabel=r"scale of the heavy part, $\gamma/\sigma_x$")
    axis.set_ylabel(r"fraction $\alpha$")
    axis.grid(False)
    axis.figure.colorbar(mesh, ax=axis, extend="max" if low == 1 else "both")


def _estimators(points: list[CurvePoint]) -> "Figure":
    from ...engine.figures import COLOURS, LINES, panels

    looks = {
        "bayes": ("Bayes", COLOURS["none"], "solid"),
        "hard": ("hard clip", COLOURS["hard_clip"], LINES["hard_clip"]),
        "smooth": ("smooth shrinkage", COLOURS["smooth_shrinkage"], LINES["smooth_shrinkage"]),
    }
    figure, (near, far) = panels(2)
    for axis in (near, far):
        for method, (label, colour, line) in looks.items():
            x, y = zip(*[(point.y, point.estimate) for point in points if point.method == method], strict=True)
            axis.plot(x, y, color=colour, ls=line, lw=2, label=label)
    near.set(xlim=(0, 12), ylim=(0, None), xlabel="y", ylabel="estimate of x", title="near")
    far.set(xscale="log", yscale="log", xlim=(1, 1000), ylim=(1e-3, 2), xlabel="y", title="far")
    far.legend(frameon=False, loc="lower left")
    return figure
