"""Figures of the noise models: one strip of panels per diagnostic, one panel per model, and the rates over sizes."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...engine.study import Row
from ..palette import BAND, BLUE, GREY, INK, RED
from .claims import RATES
from .study import LocalizationMedians, MarginalBin, ModelSummary, NoiseDraw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTIONS = {
    "marginals": "Entries of each noise model over all draws, in units of their standard deviation. Low-rank noise has "
    "the marginal of Gaussian noise (dotted); heavy-tailed entries reach far beyond.",
    "spectral_max": "Largest entry against largest singular value, one point per draw, with Spearman's rho and its "
    "95 % interval. Only where entries are heavy-tailed does the largest one drive the spectrum.",
    "localization": "R-hat of each draw, with the median (line) and the 95 % band (grey) in which the median would lie "
    "for Gaussian noise.",
    "rates": "Medians of r_max, r, R and R-hat over the size of the matrix, for flat (solid) and random (dashed) "
    "directions u, v. Dotted: the rates of the paper's table.",
}
QUANTITIES = {"r_max": r"$r_{\max}$", "r": "$r$", "ratio": "$R$", "normalized": r"$\hat R$"}
NOISE_COLOURS = {"Gaussian": GREY, "spike": RED, "aligned": BLUE}


def figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    """Draw three strips with a panel per model, and the rates."""
    summaries, draws = ModelSummary.from_rows(rows), NoiseDraw.from_rows(rows)
    return {
        "marginals": _marginals(summaries, MarginalBin.from_rows(rows)),
        "spectral_max": _spectral_max(summaries, draws),
        "localization": _localization(summaries, draws),
        "rates": _rates(LocalizationMedians.from_rows(rows)),
    }


def _marginals(summaries: list[ModelSummary], bins: list[MarginalBin]) -> "Figure":
    from ...engine.figures import panels

    figure, axes = panels(len(summaries), width=3.1, height=2.5)
    normal = np.linspace(-12, 12, 200)
    for axis, summary in zip(axes, summaries, strict=True):
        mine = [each for each in bins if each.model == summary.model and each.density > 0]
        x, density = np.array([(each.x, each.density) for each in mine]).T
        axis.fill_between(x, density, 1e-9, color=BLUE, alpha=0.6, step="mid")
        axis.plot(
            normal, np.exp(-(normal**2) / 2) / math.sqrt(2 * math.pi), color=INK, ls=":", lw=1.2, label="Gaussian"
        )
        axis.set(yscale="log", ylim=(1e-8, 2), xlim=(-12, 12), title=summary.model)
        axis.set_xlabel("entry / standard deviation")
    axes[0].set_ylabel("density")
    axes[-1].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _spectral_max(summaries: list[ModelSummary], draws: list[NoiseDraw]) -> "Figure":
    from ...engine.figures import panels

    figure, axes = panels(len(summaries), width=3.1, height=3.0)
    for axis, summary in zip(axes, summaries, strict=True):
        x, y = np.array([(each.largest, each.sigma) for each in draws if each.model == summary.model]).T
        axis.scatter(x, y, s=14, color=RED, alpha=0.7, lw=0)
        interval = f"[{summary.rho_low:.3f}, {summary.rho_high:.3f}]"
        axis.set_xlabel(r"$\max_{ij}\,|E_{ij}|$")
        axis.set_title(f"{summary.model}\n$\\rho$ = {summary.rho:.3f} {interval}", fontsize=10)
        if max(x) > 10 * min(x):
            _logarithmic(axis)
    axes[0].set_ylabel(r"$\sigma_1(E)$")
    return figure


def _logarithmic(axis: "Axes") -> None:
    """Make both scales logarithmic, with labels at 1 and 3 times the powers of 10."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set(xscale="log", yscale="log")
    for scale in (axis.xaxis, axis.yaxis):
        scale.set_major_locator(LogLocator(subs=(1, 3)))
        scale.set_major_formatter(StrMethodFormatter("{x:.0f}"))
        scale.set_minor_formatter(NullFormatter())


def _localization(summaries: list[ModelSummary], draws: list[NoiseDraw]) -> "Figure":
    from ...engine.figures import panels

    figure, axes = panels(len(summaries), width=3.1, height=2.8)
    bins = np.geomspace(1e-3, 1e6, 37).tolist()
    for axis, summary in zip(axes, summaries, strict=True):
        values = [each.normalized for each in draws if each.model == summary.model]
        axis.axvspan(summary.band_low, summary.band_high, color=BAND, alpha=0.4, lw=0, label="Gaussian, 95 %")
        axis.hist(np.clip(values, 1e-3, 1e6), bins, color=BLUE, alpha=0.6)
        axis.axvline(summary.median, color=RED, lw=1.8, label="median")
        axis.set(xscale="log", xlabel=r"$\hat R$", xlim=(1e-3, 1e6))
        axis.set_title(f"{summary.model}\nmedian {summary.median:.3g}", fontsize=10)
    axes[0].set_ylabel("draws")
    axes[-1].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _rates(medians: list[LocalizationMedians]) -> "Figure":
    from ...engine.figures import panels

    figure, axes = panels(4, width=3.1, height=3.0)
    for axis, (quantity, title) in zip(axes, QUANTITIES.items(), strict=True):
        for noise, colour in NOISE_COLOURS.items():
            flat, random = ([e for e in medians if (e.noise, e.directions) == (noise, d)] for d in ("flat", "random"))
            x, y = _sizes_and(quantity, flat)
            axis.plot(x, y, color=colour, ls="-", marker="o", ms=3, lw=1.4, label=noise)
            law = RATES[noise][quantity]
            theory = x**law.power * np.log(x) ** law.log
            axis.plot(x, theory * y[-1] / theory[-1], color=colour, ls=":", lw=3, alpha=0.4)
            axis.plot(*_sizes_and(quantity, random), color=colour, ls="--", marker="o", ms=3, lw=1.4)
        axis.set(xscale="log", yscale="log", xlabel="$mn$", title=title)
    for line, width, words in (("-", 1.4, "flat u, v"), ("--", 1.4, "random u, v"), (":", 3, "the paper's rate")):
        axes[-1].plot([], [], color=INK, ls=line, lw=width, label=words)
    axes[-1].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _sizes_and(quantity: str, medians: list[LocalizationMedians]) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of entries mn, and the medians of a quantity at these sizes."""
    x, y = np.array([[each.side**2, getattr(each, quantity)] for each in medians]).T
    return x, y
