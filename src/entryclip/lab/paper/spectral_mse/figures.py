"""Figure of the tightness of the bound against R-hat, and of the error of sigma_1 over the threshold."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...engine.study import Row
from ..palette import BAND, BLUE, GREY, INK, ORANGE, RED
from .claims import Errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTIONS = {
    "bridge": "(a) How much of the entry-wise error shows in sigma_1, against the median R-hat of Delta, one point per "
    "threshold; grey: the null band of the median. (b) Error of sigma_1 over the threshold, in units of the error "
    "without clipping; marks: the threshold with the least entry-wise error.",
}
REGIME_COLOURS = {"aligned": BLUE, "Gaussian": GREY, "small spike": ORANGE, "large spikes": RED}
MARKERS = {"none": "*", "hard": "s", "smooth": "o"}
LINES = {"hard": "--", "smooth": "-"}


def figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    """Draw the ratio of the bound's two sides against R-hat, and the effect of clipping on sigma_1."""
    from ...engine.figures import panels

    errors = Errors(rows)
    figure, (bridge, effect) = panels(2, width=5.2, height=3.9)
    _plot_tightness(bridge, errors)
    _plot_effect(effect, errors)
    return {"bridge": figure}


def _plot_tightness(axis: "Axes", errors: Errors) -> None:
    axis.axvspan(errors.all[0].band_low, errors.all[0].band_high, color=BAND, alpha=0.3, lw=0, label="Gaussian, 95 %")
    axis.axhline(1, color=INK, lw=0.8, ls=":", label="the bound")
    for regime, colour in REGIME_COLOURS.items():
        for name, marker in MARKERS.items():
            mine = errors.over_thresholds(regime, name)
            x, y = [error.normalized for error in mine], [error.tightness for error in mine]
            axis.scatter(x, y, s=120 if name == "none" else 22, marker=marker, color=colour, alpha=0.75, lw=0)
    for name, marker in MARKERS.items():
        label = "without clipping" if name == "none" else name
        axis.scatter([], [], s=40, marker=marker, color=INK, lw=0, label=label)
    axis.legend(frameon=False, loc="lower left")
    axis.set(xscale="log", yscale="log", xlabel=r"median $\hat R(\Delta)$", title="(a) tightness of the bound")
    axis.set_ylim(min(error.tightness for error in errors.all) / 50, 3)  # room for the legend
    axis.set_ylabel(r"$\mathbb{E}\,|\Delta\sigma_1|^2\; /\; \mathbb{E}\,\|\Delta\|_F^2$")


def _plot_effect(axis: "Axes", errors: Errors) -> None:
    for regime, colour in REGIME_COLOURS.items():
        plain = errors.unclipped(regime).spectral
        for name, line in LINES.items():
            mine = errors.over_thresholds(regime, name)
            points = np.array([(error.threshold, error.spectral / plain) for error in mine], dtype=float)
            best = points[mine.index(errors.least_entrywise(regime, name))]
            axis.plot(*points.T, color=colour, ls=line, lw=1.6, label=f"{regime}, {name}")
            axis.plot(*best, marker=MARKERS[name], color=colour, ms=7)
    axis.axhline(1, color=INK, lw=0.8, ls=":", label="without clipping")
    axis.set(xscale="log", yscale="log", xlabel="threshold (entries of G: about 1)", title="(b) error of $\\sigma_1$")
    axis.set_ylabel("error with clipping / without")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
