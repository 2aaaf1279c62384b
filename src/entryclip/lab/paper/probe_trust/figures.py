"""Figure of the flagged layers, the spiked samples and R-hat, by kind of noise."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...engine.study import Row
from ..palette import BLUE, GREY, OLIVE, PALE, RED
from ..synthetic_layers import NOISE_KINDS
from .claims import LABELS, gaussian_band, median_r_hat, plain_r_hat, share
from .study import ProbedLayer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTIONS = {
    "probe_trust": "(a) The share of layers for which the probe advises clipping, and (grey) those with rare spikes, "
    "of which it is not sure. (b) The share of samples in which one entry carries more than half of sigma_1: median "
    "and range over the layers. (c) R-hat along the k-th direction of the gradient, the median over the layers; the "
    "band is that of Gaussian noise. Noise aligned with the first direction is far below 1 there and far above 1 along "
    "all others, with no entry that stands out. Dashed: R-hat with a plain mean, which follows the spikes, so that "
    "R-hat is near 1.",
}
RATIO_COLOURS = {"gaussian": GREY, "aligned": BLUE, "heavy_low_rank": OLIVE, "cauchy": RED}


def figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    """Draw bars of the verdicts, ranges of the spiked samples, and R-hat over k."""
    from ...engine.figures import panels

    layers = ProbedLayer.from_rows(rows)
    figure, (bars, ranges, ratios) = panels(3, width=4.0, height=3.6)
    _plot_verdicts(bars, layers)
    _plot_spiked(ranges, layers)
    for axis in (bars, ranges):
        axis.set_ylim(len(NOISE_KINDS) - 0.5, -0.5)
        axis.grid(axis="y", visible=False)
    _plot_ratios(ratios, layers)
    return {"probe_trust": figure}


def _plot_verdicts(axis: "Axes", layers: list[ProbedLayer]) -> None:
    place = range(len(NOISE_KINDS))
    flagged, rare = ([share(layers, [kind], verdict) for kind in NOISE_KINDS] for verdict in ("spikes", "rare spikes"))
    axis.barh(place, flagged, color=RED)
    axis.barh(place, rare, left=flagged, color=PALE)
    axis.set(xlim=(0, 1), xlabel="share of the layers", title="(a) flagged")
    axis.set_yticks(list(place), [LABELS[kind] for kind in NOISE_KINDS])


def _plot_spiked(axis: "Axes", layers: list[ProbedLayer]) -> None:
    for y, kind in enumerate(NOISE_KINDS):
        shares = [layer.spiked for layer in layers if layer.kind == kind]
        axis.plot([min(shares), max(shares)], [y, y], color=BLUE, lw=2)
        axis.plot(np.median(shares), y, "o", color=BLUE)
    axis.set(xlim=(-0.03, 1.03), xlabel="share of the samples", title="(b) spiked")
    axis.set_yticks(range(len(NOISE_KINDS)), [""] * len(NOISE_KINDS))


def _plot_ratios(axis: "Axes", layers: list[ProbedLayer]) -> None:
    axis.axhspan(*gaussian_band(layers), color="#dddddd", lw=0)
    for kind, colour in RATIO_COLOURS.items():
        ratios = median_r_hat(layers, kind)
        axis.plot(range(1, len(ratios) + 1), ratios, "o-", ms=4, color=colour, label=LABELS[kind])
        if kind == "cauchy":
            plain = plain_r_hat(layers, kind)
            axis.plot(range(1, len(plain) + 1), plain, "--", color=colour, label="plain mean's")
    axis.set(yscale="log", xlabel="k", ylabel="R-hat", title="(c) R-hat")
    axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
