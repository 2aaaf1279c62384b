"""The drawings of `noise_models`: a strip of panels per diagnostic, and the rates."""

import math
from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from ...engine.figures import panels

Rows = list[dict[str, Any]]


def _models(rows: Rows) -> list[str]:
    return [row["model"] for row in rows if row["kind"] == "summary"]


def _rho(row: dict[str, Any]) -> str:
    return f"$\\rho$ = {row['rho']:.3f} [{row['rho_low']:.3f}, {row['rho_high']:.3f}]"


def _select(rows: Rows, kind: str, model: str) -> Rows:
    return [row for row in rows if row["kind"] == kind and row.get("model") == model]


def marginals(rows: Rows) -> Any:
    names = _models(rows)
    figure, axes = panels(len(names), width=3.1, height=2.5)
    for axis, model in zip(axes, names, strict=True):
        mine = [row for row in _select(rows, "marginal", model) if row["density"] > 0]
        x = np.array([row["x"] for row in mine])
        axis.fill_between(x, [row["density"] for row in mine], 1e-9, color="#1f5fa8", alpha=0.6, step="mid")
        axis.plot(
            x := np.linspace(-12, 12, 200),
            np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi),
            color="#222222",
            ls=":",
            lw=1.2,
        )
        axis.set(yscale="log", ylim=(1e-8, 2), xlim=(-12, 12), title=model, xlabel="entry / standard deviation")
    axes[0].set_ylabel("density")
    return figure


def spectral_max(rows: Rows) -> Any:
    names = _models(rows)
    figure, axes = panels(len(names), width=3.1, height=3.0)
    for axis, model in zip(axes, names, strict=True):
        mine, (summary,) = _select(rows, "draw", model), _select(rows, "summary", model)
        axis.scatter([r["largest"] for r in mine], [r["sigma"] for r in mine], s=14, color="#c8352b", alpha=0.7, lw=0)
        wide = max(r["largest"] for r in mine) > 10 * min(r["largest"] for r in mine)
        axis.set(xlabel=r"$\max_{ij}\,|E_{ij}|$", title=f"{model}\n{_rho(summary)}")
        axis.title.set_fontsize(10)
        if wide:
            axis.set(xscale="log", yscale="log")
            for scale in (axis.xaxis, axis.yaxis):
                scale.set_major_locator(LogLocator(subs=(1, 3)))
                scale.set_major_formatter(StrMethodFormatter("{x:.0f}"))
                scale.set_minor_formatter(NullFormatter())
    axes[0].set_ylabel(r"$\sigma_1(E)$")
    return figure


def localization(rows: Rows) -> Any:
    names = _models(rows)
    figure, axes = panels(len(names), width=3.1, height=2.8)
    bins = np.geomspace(1e-3, 1e6, 37).tolist()
    for axis, model in zip(axes, names, strict=True):
        mine, (summary,) = _select(rows, "draw", model), _select(rows, "summary", model)
        axis.axvspan(summary["band_low"], summary["band_high"], color="#999999", alpha=0.4, lw=0)
        axis.hist(np.clip([r["normalized"] for r in mine], 1e-3, 1e6), bins, color="#1f5fa8", alpha=0.6)
        axis.axvline(summary["median"], color="#c8352b", lw=1.8)
        axis.set(xscale="log", xlabel=r"$\hat R$", title=f"{model}\nmedian {summary['median']:.3g}", xlim=(1e-3, 1e6))
        axis.title.set_fontsize(10)
    axes[0].set_ylabel("draws")
    return figure


def rates(rows: Rows, powers: dict[str, dict[str, tuple[int, int]]]) -> Any:
    figure, axes = panels(4, width=3.1, height=3.0)
    names = {"r_max": r"$r_{\max}$", "r": "$r$", "ratio": "$R$", "normalized": r"$\hat R$"}
    colours = {"Gaussian": "#555555", "spike": "#c8352b", "aligned": "#1f5fa8"}
    for axis, (quantity, title) in zip(axes, names.items(), strict=True):
        for noise, colour in colours.items():
            for directions, style in (("flat", "-"), ("random", "--")):
                mine = [
                    r for r in rows if r["kind"] == "rate" and r["noise"] == noise and r["directions"] == directions
                ]
                x, y = np.array([[r["side"] ** 2, r[quantity]] for r in mine]).T
                label = noise if directions == "flat" else None
                axis.plot(x, y, color=colour, ls=style, marker="o", ms=3, lw=1.4, label=label)
                if directions == "flat":
                    power, log = powers[noise][quantity]
                    theory = x**power * np.log(x) ** log
                    axis.plot(x, theory * y[-1] / theory[-1], color=colour, ls=":", lw=3, alpha=0.4)
        axis.set(xscale="log", yscale="log", xlabel="$mn$", title=title)
    axes[0].legend(frameon=False, loc="lower left")
    return figure
