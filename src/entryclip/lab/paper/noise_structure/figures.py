"""The figures: the noise of one matrix, R-hat and correlation of all matrices over training, and the clipped runs."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...engine.study import Row
from ..lm_methods import METHOD_NAMES
from .claims import difference, final_losses, rho_of_gaussian
from .runs import Stages, by_run, first_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTIONS = {
    "real": "One matrix at three stages of training: the real column of the paper's figure of noise models. Above: "
    "its noise entries in units of the sample's scale; dotted: Gaussian. Middle: largest entry against sigma_1, both "
    "over their medians, one point per sample. Below: R-hat of the samples, its median (line), and the 95 % band of "
    "that median for Gaussian noise (grey).",
    "r_hat": "Median R-hat of the noise of every hidden matrix along the k-th direction of the gradient, at three "
    "stages, as in the paper's figure of R-hat. Grey: the 95 % band of Gaussian noise.",
    "corr": "Spearman's rho of max |E| and sigma_1(E) for every hidden matrix, as in the paper, with 95 % "
    "intervals at the last stage. Above: as they are. Below: in units of each sample's scale, where samples of "
    "different size no longer make a correlation; grey: where Gaussian noise lies (95 %).",
    "hill": "Hill's tail index over the number of largest entries it is taken from, as in the paper, a line "
    "for each matrix of a kind. Lower is heavier.",
    "standardized": "Above: what the best entry-wise clip would gain on the noise of each hidden matrix, in all runs: "
    "as it is (hollow), and with the scales of rows and columns divided out (filled); 1: no clip helps. Below: median "
    "R-hat along the first direction over that of Gaussian noise with the same scales of rows and columns.",
    "where": "Final validation loss with a clip on some of the hidden matrices less that without, from the same "
    "weights on the same batches: seeds (dots), their mean and 95 % interval.",
}
_COLOURS = ("#8fb8de", "#1f5fa8", "#c8352b")  # early, middle, late
_KINDS = {"qkv_w.q": "queries", "qkv_w.k": "keys", "qkv_w.v": "values", "attn.c_proj.weight": "attention's output"} | {
    "c_fc.weight": "MLP, in",
    "mlp.c_proj.weight": "MLP, out",
}
_ARMS = {"all": "all matrices", "high": "higher R-hat", "low": "lower R-hat", "advised": "as advised"} | {
    "not advised": "not advised"
}


def figures(rows: Sequence[Row]) -> "Mapping[str, Figure]":
    """Draw a figure for each caption whose rows are there: `where` needs runs with a clip."""
    made = {"real": _real(rows), "r_hat": _r_hat(rows), "corr": _corr(rows), "hill": _hill(rows)}
    if any(row.get("standardized_gain") for row in rows):
        made["standardized"] = _standardized(rows)
    return made | ({"where": _where(rows)} if final_losses(rows) else {})


def _real(rows: Sequence[Row]) -> "Figure":
    from ...engine.figures import panels

    shown = [row for row in rows if row["kind"] == "shown"]
    stages = first_run(rows)
    figure, axes = panels(len(shown), rows=3, width=3.6, height=2.7)
    for i, row in enumerate(shown):
        marginal, scatter, ratios = axes[i :: len(shown)]
        found = stages[row["step"]][row["matrix"]]
        _marginal(marginal, row)
        marginal.set_title(f"{row['matrix']}\nstep {row['step']}", fontsize=10)
        _scatter(scatter, row)
        scatter.set_title(f"rho {found['spearman']:.2f}, in units of the scale {found['relative']:.2f}", fontsize=9)
        values = np.clip(row["r_hat"], 1e-5, 1e5)
        ratios.axvspan(found["low"][0], found["high"][0], color="#bbbbbb", lw=0, label="Gaussian, 95 %")
        ratios.hist(values, bins=np.geomspace(1e-5, 1e5, 31).tolist(), color="#1f5fa8", alpha=0.8)
        ratios.axvline(found["r_hat"][0], color="#c8352b", lw=1.8, label="median")
        ratios.set(xscale="log", xlabel="R-hat, k = 1", ylabel="samples")
        marginal.legend(frameon=False, fontsize=8, loc="lower left")
        ratios.legend(frameon=False, fontsize=8, loc="upper right")
    return figure


def _marginal(axis: "Axes", row: Row) -> None:
    """The density of |E| in units of the scale, in bins of a factor 2^(1/4), beside that of Gaussian noise."""
    low, high, count = (np.array(row[key], float) for key in ("from", "to", "count"))
    edges = 2.0 ** np.arange(-4, math.log2(high[-1]) + 0.25, 0.25)
    heights, _ = np.histogram(np.sqrt(low * high), edges, weights=count)
    density = heights / np.diff(edges) / count.sum()
    middle = np.sqrt(edges[:-1] * edges[1:])
    axis.step(middle[density > 0], density[density > 0], where="mid", color="#1f5fa8", lw=1.5)
    gaussian = 2 * np.exp(-(middle**2) / 2) / math.sqrt(2 * math.pi)
    axis.plot(middle, gaussian, color="#111111", ls=":", lw=1.2, label="Gaussian")
    axis.set(xscale="log", yscale="log", xlabel="|E| / scale of the sample", ylabel="density")
    axis.set_ylim(density[density > 0].min() / 3, 3)


def _scatter(axis: "Axes", row: Row) -> None:
    """The largest entry against sigma_1, both over their medians, with a tick at every doubling."""
    from matplotlib.ticker import FormatStrFormatter

    x, y = (np.array(row[key]) / np.median(row[key]) for key in ("largest", "sigma"))
    axis.scatter(x, y, s=14, color="#c8352b", alpha=0.7, lw=0)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_formatter(FormatStrFormatter("%g"))
    axis.set(xlabel="max |E| / its median", ylabel=r"$\sigma_1(E)$ / its median")


def _r_hat(rows: Sequence[Row]) -> "Figure":
    from ...engine.figures import panels

    stages = first_run(rows)
    names = _ordered(stages)
    deepest = min(len(row["r_hat"]) for those in stages.values() for row in those.values())
    ks = [k for k in (1, 2, 4, 8) if k <= deepest]
    figure, axes = panels(1, rows=len(ks), width=11, height=2.1)
    for axis, k in zip(axes, ks, strict=True):
        _over_matrices(axis, stages, names, "r_hat", k)
        band = np.array([[row[end][k - 1] for row in stages[max(stages)].values()] for end in ("low", "high")])
        axis.axhspan(*np.median(band, axis=1), color="#cccccc", lw=0, zorder=0)
        axis.axhline(1, color="#111111", lw=1, ls=(0, (5, 3)))
        axis.set(yscale="log", ylabel=f"R-hat, k = {k}")
        if axis is not axes[-1]:
            axis.tick_params(labelbottom=False)
    _legend(axes[0], stages)
    return figure


def _legend(axis: "Axes", stages: Stages) -> None:
    """A legend above the panel, where it covers no points; a stage of several runs has one entry."""
    handles = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    axis.legend(
        handles.values(),
        handles,
        frameon=False,
        ncols=len(stages),
        fontsize=9,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        borderpad=0,
    )


def _over_matrices(
    axis: "Axes", stages: Stages, names: Sequence[str], key: str, k: int | None = None, *, filled: bool = True
) -> None:
    """Draw a point for every matrix at every stage: the value of `key` in its row, or the k-th number of that list."""
    for colour, (step, those) in zip(_colours(stages), stages.items(), strict=True):
        there = [i for i, name in enumerate(names) if name in those]
        points = [those[names[i]][key] if k is None else those[names[i]][key][k - 1] for i in there]
        face = colour if filled else "none"
        label = f"step {step}" if filled else ""
        axis.plot(there, points, "o", ms=4.5, color=colour, mfc=face, label=label)
    for i in range(1, len(names)):
        if _kind(names[i]) != _kind(names[i - 1]):
            axis.axvline(i - 0.5, color="#dddddd", lw=0.8)
    axis.set_xticks(range(len(names)), [name.removesuffix(".weight") for name in names], rotation=90, fontsize=7)
    axis.set_xlim(-0.7, len(names) - 0.3)
    axis.grid(axis="x", visible=False)


def _colours(stages: Stages) -> list[str]:
    return [_COLOURS[min(2, round(2 * i / max(len(stages) - 1, 1)))] for i in range(len(stages))]


def _kind(name: str) -> str:
    return next((kind for kind in _KINDS if name.endswith(kind)), "others")


def _ordered(stages: Stages) -> list[str]:
    """The names of all matrices, those of a kind together, then by layer."""
    names = dict.fromkeys(name for those in stages.values() for name in those)
    kinds = [*_KINDS, "others"]
    return sorted(names, key=lambda name: kinds.index(_kind(name)))


def _corr(rows: Sequence[Row]) -> "Figure":
    from ...engine.figures import panels

    stages = first_run(rows)
    names = _ordered(stages)
    figure, axes = panels(1, rows=2, width=11, height=2.6)
    for axis, key, title in (
        (axes[0], "spearman", "rho of max |E| and sigma_1(E)"),
        (axes[1], "relative", "the same, in units of\nthe sample's scale"),
    ):
        _over_matrices(axis, stages, names, key)
        last = stages[max(stages)]
        ends = np.array(
            [[last[n][f"{key}_{end}"] if n in last else None for n in names] for end in ("low", "high")], float
        )
        axis.vlines(range(len(names)), *ends, color="#c8352b", lw=1, alpha=0.6)
        axis.axhline(0, color="#111111", lw=0.8)
        axis.set(ylim=(-0.3, 1.02), ylabel=title)
    axes[0].tick_params(labelbottom=False)
    bands = rho_of_gaussian(rows)
    shape_of = {name: (row["rows"], row["columns"]) for those in stages.values() for name, row in those.items()}
    for i, name in enumerate(names):
        axes[1].fill_between([i - 0.5, i + 0.5], *bands[shape_of[name]], color="#cccccc", lw=0, zorder=0)
    _legend(axes[0], stages)
    return figure


def _hill(rows: Sequence[Row]) -> "Figure":
    from ...engine.figures import panels

    stages = first_run(rows)
    kinds = [kind for kind in _KINDS if any(_kind(name) == kind for those in stages.values() for name in those)]
    figure, axes = panels(3, rows=-(-len(kinds) // 3), width=3.6, height=2.6)
    for axis, kind in zip(axes, kinds, strict=False):
        for colour, (step, those) in zip(_colours(stages), stages.items(), strict=True):
            lines = [row for name, row in those.items() if _kind(name) == kind and row.get("hill")]
            for i, row in enumerate(lines):
                axis.plot(row["hill_k"], row["hill"], color=colour, lw=1, alpha=0.8, label="" if i else f"step {step}")
        axis.set(xscale="log", yscale="log", ylim=(1.5, 40), title=_KINDS[kind], xlabel="largest entries")
        axis.set_yticks([2, 4, 8, 16, 32], ["2", "4", "8", "16", "32"])
        axis.minorticks_off()
    axes[0].set_ylabel("Hill's tail index")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def _standardized(rows: Sequence[Row]) -> "Figure":
    from ...engine.figures import panels

    figure, axes = panels(1, rows=2, width=11, height=2.6)
    runs = [_with_scales(stages) for stages in by_run(rows).values()]
    names = _ordered(runs[0])
    for stages in runs:
        for axis, key, k in ((axes[0], "gain", None), (axes[1], "r_hat", 1)):
            _over_matrices(axis, stages, names, "raw_gain" if key == "gain" else key, k, filled=False)
            _over_matrices(axis, stages, names, f"standardized_{key}", k)
    for axis, label in zip(axes, ("gain of the best clip", "R-hat, k = 1"), strict=True):
        axis.set(yscale="log", ylabel=label)
        axis.axhline(1, color="#111111", lw=1, ls=(0, (5, 3)))
    axes[0].tick_params(labelbottom=False)
    _legend(axes[0], runs[0])
    return figure


def _with_scales(stages: Stages) -> Stages:
    """Return the rows that have the noise with its scales divided out."""
    return {
        step: {name: row for name, row in those.items() if row["standardized_gain"] and row["standardized_r_hat"]}
        for step, those in stages.items()
    }


def _where(rows: Sequence[Row]) -> "Figure":
    from ...engine.figures import panels

    found = final_losses(rows)
    figure, axes = panels(len(found), width=4.6, height=3.0)
    for axis, (method, losses) in zip(axes, found.items(), strict=True):
        arms = [arm for arm in _ARMS if arm in losses]
        for y, arm in enumerate(arms):
            each = difference(losses, arm, "none")
            pairs = [losses[arm][seed] - losses["none"][seed] for seed in losses[arm] if seed in losses["none"]]
            axis.plot(pairs, [y - 0.15] * len(pairs), "o", ms=4, color="#1f5fa8", alpha=0.7)
            if math.isfinite(each.low):
                axis.plot([each.low, each.high], [y, y], color="#c8352b", lw=1.5)
            axis.plot(each.value, y, "D", ms=6, color="#c8352b")
        axis.axvline(0, color="#111111", lw=0.8, ls=(0, (5, 3)))
        axis.set_yticks(range(len(arms)), [_ARMS[arm] for arm in arms])
        axis.set(ylim=(len(arms) - 0.5, -0.5), xlabel="final loss less that without a clip", title=METHOD_NAMES[method])
        axis.grid(axis="y", visible=False)
        axis.locator_params(axis="x", nbins=5)
    return figure
