"""Figures of the operators: their outputs, and the damping factors at the tangent calibration."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...engine.study import Row
from ..palette import BAND
from .claims import Curve, Curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTIONS = {
    "clipping_ops": "Three entry-wise operators at the same threshold. Hard clipping stays at the threshold, smooth "
    "shrinkage peaks there at 1/e of it and falls to zero, soft thresholding keeps only what lies beyond.",
    "clipping_comparison": "At the tangent calibration c = tau/e the damping factors touch at |y| = tau with value 1/e "
    "(a); smooth shrinkage damps more at every other y. The outputs (b): hard clipping stays at c, smooth shrinkage "
    "peaks at c and decays.",
}


def figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    """Draw the paper's two figures."""
    curves = Curves(rows)
    return {"clipping_ops": _outputs(curves), "clipping_comparison": _comparison(curves)}


def _outputs(curves: Curves) -> "Figure":
    from ...engine.figures import panels

    tau = curves.tau
    figure, (axis,) = panels(1, width=6.0)
    x = curves("hard_clip", tau).x
    axis.plot(x, x, color=BAND, lw=1, ls=":", label="identity")
    for name in ("hard_clip", "smooth_shrinkage", "soft_threshold"):
        curve = curves(name, tau)
        _plot(axis, name, curve, curve.output)
    axis.set(xlabel="x", ylabel="output", ylim=(0, 2.2 * tau), xlim=(0, 5 * tau))
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return figure


def _comparison(curves: Curves) -> "Figure":
    from ...engine.figures import panels

    tau = curves.tau
    figure, (damping, output) = panels(2)
    for name, threshold in (("hard_clip", tau / math.e), ("smooth_shrinkage", tau)):
        curve = curves(name, threshold)
        _plot(damping, name, curve, curve.factor)
        _plot(output, name, curve, curve.output)
    for axis, title in ((damping, "(a) damping factor"), (output, "(b) output")):
        axis.axvline(tau, color=BAND, lw=0.8, ls=":")
        axis.set(xlabel="|y|", title=title, xlim=(0, 6 * tau), ylim=(0, None))
    text = r"tangent at $|y| = \tau$: $1/e$"
    damping.annotate(text, (tau, 1 / math.e), (2 * tau, 0.6), arrowprops={"arrowstyle": "->"})
    damping.legend(loc="upper right", frameon=False)
    return figure


def _plot(axis: "Axes", name: str, curve: Curve, values: np.ndarray) -> None:
    from ...engine.figures import COLOURS, LINES

    axis.plot(curve.x, values, color=COLOURS[name], ls=LINES[name], lw=2, label=name.replace("_", " "))
