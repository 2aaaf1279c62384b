"""The figures of the regression study."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...engine.study import Row
from .results import RegressionResults
from .study import PAPER_METHODS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ALGORITHMS = {"post": "Gradient descent", "pre": "Spectral gradient descent"}
CAPTIONS = {
    "speedup": "How many times lower the loss ends with entry-wise clipping than without (solid), each at its best "
    "learning rate and threshold, and than the lower of no clipping and standing still (dotted). Gradient descent "
    "without clipping ends above its start under heavy contamination: there only the dotted lines say what clipping is "
    "worth.",
    **{
        f"{stage}_d{d}": f"{name}, d = {d}. Left: the gain in loss. Middle: the largest singular value of the first "
        "gradient over its gain along the clean one. Right: the share of the clean gradient's leading subspace that is "
        "left; the grey line is what two random subspaces share by chance."
        for stage, name in _ALGORITHMS.items()
        for d in (32, 64)
    },
    **{
        f"{stage}_d{d}_curves": f"{name}, d = {d}: the loss along the runs, medians over the "
        "seeds and quartiles, every method at its best setting."
        for stage, name in _ALGORITHMS.items()
        for d in (32, 64)
    },
    "thresholds": "Beyond the paper: dashed, the best on the paper's grid; solid, with lower quantiles, multiples of "
    "the median and more learning rates. The posterior mean is told the noise and the size of the clean gradient: it "
    "is the best entry-wise step, not a bound for the end of a run.",
    "other_noise": "The same gain under Gaussian and low-rank noise, where no entry stands out, beside contamination.",
}
_STAGE_NAMES = {"post": "GD, post-clipping", "pre": "spectral GD, pre-clipping"}
_LOOKS: dict[str, dict[str, Any]] = {
    "clean": {"color": "#111111", "ls": "-", "label": "clean gradient"},
    "none": {"color": "#555555", "ls": (0, (1, 2)), "label": "no clipping"},
    "hard": {"color": "#1f5fa8", "ls": (0, (5, 2)), "label": "hard clipping"},
    "smooth": {"color": "#c8352b", "ls": "-", "label": "smooth shrinkage"},
    "global": {"color": "#8a6d1c", "ls": ":", "label": "global norm"},
    "agc": {"color": "#6b4fa0", "ls": ":", "label": "AGC"},
    "spam": {"color": "#2f8f5b", "ls": ":", "label": "SPAM's rule"},
    "posterior": {"color": "#111111", "ls": "-", "label": "posterior mean, told the\nsignal's size (one-step optimum)"},
}


def figures(rows: Sequence[Row]) -> "Mapping[str, Figure]":
    """Draw `speedup`, the two figures of the paper's appendix for each stage and size, `thresholds`, `other_noise`."""
    results = RegressionResults(rows)
    made = {"speedup": _speedups(results)}
    for stage in results.stages():
        for d in results.sizes():
            made[f"{stage}_d{d}"] = _summary(results, stage, d)
            made[f"{stage}_d{d}_curves"] = _curves(results, stage, d)
    if results.levels("free"):
        made["thresholds"] = _thresholds(results)
    if results.other_noises():
        made["other_noise"] = _other_noise(results)
    return made


def _speedups(results: RegressionResults) -> "Figure":
    from ...engine.figures import panels

    d = results.sizes()[0]
    stages = results.stages()
    figure, axes = panels(len(stages), width=4.6, height=3.4)
    for axis, stage in zip(axes, stages, strict=True):
        _speedup(axis, results, stage, d)
        axis.set_title(f"{_STAGE_NAMES[stage]}, d = {d}")
    axes[-1].legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def _summary(results: RegressionResults, stage: str, d: int) -> "Figure":
    """Speedup, spectral control and subspace recovery over alpha, side by side."""
    from ...engine.figures import panels

    figure, axes = panels(3, width=4.1, height=3.4)
    _speedup(axes[0], results, stage, d)
    axes[0].set_title("speedup")

    def top(method: str, alpha: float) -> float:
        row = results.spectrum(method, stage=stage, d=d, level=alpha)
        return float(row["values"][0] / row.get("gain", 1.0))  # a uniform shrinkage is but a smaller learning rate

    def kept(method: str, alpha: float) -> float:
        return float(results.spectrum(method, stage=stage, d=d, level=alpha)["kept"])

    _over_alpha(axes[1], results, ("clean", *PAPER_METHODS), top, log=True)
    axes[1].set(title="spectral control", ylabel="largest singular value (per gain)")
    _over_alpha(axes[2], results, PAPER_METHODS, kept)
    chance = results.spectrum("none", stage=stage, d=d, level=results.levels()[0])["chance"]
    axes[2].axhline(chance, color="#999999", lw=1, label=f"chance, {chance:.3g}")
    axes[2].legend(frameon=False, fontsize=8)
    axes[2].set(title="subspace recovery", ylabel="share of the leading subspace kept", ylim=(0, 1))
    axes[1].legend(frameon=False, fontsize=8)
    figure.suptitle(f"{_STAGE_NAMES[stage]}, d = {d}")
    return figure


def _curves(results: RegressionResults, stage: str, d: int) -> "Figure":
    """The loss along the runs, a panel for each alpha."""
    from ...engine.figures import panels

    levels = results.levels()
    columns = min(4, len(levels))
    figure, axes = panels(columns, rows=-(-len(levels) // columns), width=3.0, height=2.5)
    for axis, alpha in zip(axes, levels, strict=False):
        for method in PAPER_METHODS:
            rows = results.where(kind="curve", method=method, part="paper", stage=stage, d=d, level=alpha)
            _curve(axis, [row for row in rows if row["loss"] is not None], _LOOKS[method])
        axis.set(title=f"alpha = {alpha:g}", yscale="log", xlabel="step")
    for axis in axes[len(levels) :]:
        axis.set_visible(False)
    axes[0].set_ylabel("loss, median and quartiles")
    axes[0].legend(frameon=False, fontsize=7)
    figure.suptitle(f"{_STAGE_NAMES[stage]}, d = {d}: each method at its best")
    return figure


def _curve(axis: "Axes", rows: Sequence[Row], look: dict[str, Any]) -> None:
    """A median with the band between its quartiles; an upper quartile that diverged is not drawn."""
    steps = [row["step"] for row in rows]
    axis.plot(steps, [row["loss"] for row in rows], lw=1.6, **look)
    high = [row["high"] if row["high"] is not None else row["loss"] for row in rows]
    axis.fill_between(steps, [row["low"] for row in rows], high, color=look["color"], alpha=0.15, lw=0)


def _thresholds(results: RegressionResults) -> "Figure":
    """Losses on the paper's grid, with any threshold, of the Bayes estimator and of the clips in use today."""
    from ...engine.figures import panels

    d, levels, stages = results.sizes()[0], results.levels("free"), results.stages()
    figure, axes = panels(len(stages), width=5.4, height=4.0)
    x = range(len(levels))
    for axis, stage in zip(axes, stages, strict=True):
        grid, free = results.paper(stage, d), results.free(stage, "contamination")
        for method in ("hard", "smooth"):
            for losses, words, ls, lw in ((grid, "paper's grid", "--", 1.2), (free, "any threshold", "-", 2)):
                y, look = [losses.best(method, a) for a in levels], {"color": _LOOKS[method]["color"], "ls": ls}
                axis.plot(x, y, lw=lw, marker="o", ms=3, label=f"{method}, {words}", **look)
        for method in ("none", "global", "agc", "spam", "posterior"):
            axis.plot(x, [free.best(method, a) for a in levels], lw=1.4, marker=".", **_LOOKS[method])
        axis.axhline(grid.start, color="#999999", lw=1, label="standing still")
        axis.set(title=f"{_STAGE_NAMES[stage]}, d = {d}", yscale="log", xlabel="alpha", ylabel="final loss, median")
        axis.set_xticks(list(x), [f"{a:g}" for a in levels])
        axis.set_ylim(top=3 * grid.start)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
    return figure


def _other_noise(results: RegressionResults) -> "Figure":
    """Speedups where the paper says that entry-wise clipping should not help, beside contamination."""
    from ...engine.figures import panels

    noises = sorted({(row["noise"], row["level"]) for row in results.where(part="free")})
    stages = results.stages()
    figure, axes = panels(len(stages), width=5.0, height=3.4)
    for axis, stage in zip(axes, stages, strict=True):
        for offset, method in ((-0.15, "hard"), (0.15, "smooth"), (0.0, "global")):
            gains = [results.free(stage, noise).speedup(method, level) for noise, level in noises]
            places = [i + offset for i in range(len(noises))]
            axis.plot(gains, places, "o", ms=6, color=_LOOKS[method]["color"], label=_LOOKS[method]["label"])
        axis.axvline(1, color="#999999", lw=1, label="no gain")
        axis.set(xscale="log", xlabel="loss without clipping / with", title=_STAGE_NAMES[stage])
        axis.set_yticks(range(len(noises)), [f"{noise} {level:g}" for noise, level in noises])
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def _speedup(axis: "Axes", results: RegressionResults, stage: str, d: int) -> None:
    losses = results.paper(stage, d)
    _over_alpha(axis, results, ("hard", "smooth"), losses.speedup, log=True)
    for method in ("hard", "smooth"):
        gains = [losses.speedup_over_still(method, alpha) for alpha in losses.levels]
        label = f"{method}, also over standing still"
        axis.plot(range(len(gains)), gains, lw=1.4, ls=":", marker=".", color=_LOOKS[method]["color"], label=label)
    axis.axhline(1, color="#999999", lw=1, label="no gain")
    axis.set_ylabel("loss without clipping / with")


def _over_alpha(
    axis: "Axes",
    results: RegressionResults,
    methods: Sequence[str],
    value: Callable[[str, float], float],
    *,
    log: bool = False,
) -> None:
    """A line per method over the values of alpha, evenly spaced."""
    levels = results.levels()
    for method in methods:
        axis.plot(range(len(levels)), [value(method, a) for a in levels], lw=2, marker="o", ms=4, **_LOOKS[method])
    axis.set_xticks(range(len(levels)), [f"{a:g}" for a in levels])
    axis.set_xlabel("alpha")
    if log:
        axis.set_yscale("log")
