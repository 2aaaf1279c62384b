"""The figures of pretraining: the loss against tokens, and the tuning."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...engine.study import Row
from ..lm_methods import BASELINES, METHOD_LOOKS, METHOD_NAMES
from .savings import Curves, crossing, curves, restricted
from .search import Trial, best, trials_of
from .study import POST, PRE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTIONS = {
    "nano-gpt-result": "Validation loss against tokens, mean over seeds: the paper's main figure. "
    "All curves of a panel are means over the seeds that all its methods have; the table has every pair of seeds. "
    "Dashed: the final loss of the method without clipping. A speedup is the tokens of that method over the tokens "
    "with which another reaches its final loss.",
    "lr-sweep": "Final validation loss of every run of the tuning, by learning rate of the hidden matrices (the "
    "paper's learning-rate sweep); these runs may be shorter than the reported ones. Crosses: other levels.",
}
_FAMILIES = {"post-clipping": POST, "pre-clipping": PRE}
_ROOM = 0.4  # for the legend, above the curves


def figures(rows: Sequence[Row]) -> "Mapping[str, Figure]":
    """Draw `nano-gpt-result` and `lr-sweep`; a family of methods that has no rows has no panel."""
    return {"nano-gpt-result": _result(curves(rows)), "lr-sweep": _sweep(rows)}


def _result(found: dict[str, Curves]) -> "Figure":
    """Draw the whole runs, and below them their last fifth, where the curves differ."""
    from ...engine.figures import panels

    families = {name: those for name, methods in _FAMILIES.items() if (those := [m for m in methods if m in found])}
    figure, axes = panels(len(families), rows=2, width=5.2, height=3.6)
    for i, (name, methods) in enumerate(families.items()):
        whole, last = axes[i], axes[i + len(families)]
        there = restricted({method: found[method] for method in methods})
        for method, each in there.items():
            whole.plot(
                each.tokens / 1e6, each.losses.mean(0), label=METHOD_NAMES[method], lw=1.5, **METHOD_LOOKS[method]
            )
        seeds = len(next(iter(there.values())).seeds) if there else 0
        title = f"{name}, {seeds} common seed{'' if seeds == 1 else 's'}"
        whole.set(title=title, xlabel="tokens (millions)", ylabel="validation loss")
        if there:
            whole.legend(frameon=False, fontsize=8)
            _enlarge(last, there, there.get(_FAMILIES[name][0]))
    return figure


def _enlarge(axis: "Axes", there: dict[str, Curves], baseline: Curves | None) -> None:
    """Draw the last fifth, with the baseline's final loss; a method far above it is out of the frame."""
    if baseline is not None and math.isnan(baseline.final.mean()):
        baseline = None  # it diverged and has no final loss
    end = max(each.tokens[-1] for each in there.values()) / 1e6
    late = []
    for method, each in there.items():
        curve, label = each.losses.mean(0), _speedup(method, each, baseline)
        axis.plot(each.tokens / 1e6, curve, label=label, lw=1.5, **METHOD_LOOKS[method])
        late += [float(loss) for loss in curve[each.tokens >= 0.8e6 * end] if math.isfinite(loss)]
    if baseline is not None:
        level = float(baseline.final.mean())
        label = f"without clipping, in the end: {level:.3f}"
        axis.axhline(level, color="#111111", lw=0.8, ls=(0, (6, 3)), label=label)
    low = min(late, default=0.0)
    high = min(max(late, default=1.0), low + 0.4)
    room = 0.05 * (high - low) + 1e-3
    axis.locator_params(axis="x", nbins=5)
    limits = {"xlim": (0.8 * end, end), "ylim": (low - 2 * room, high + _ROOM * (high - low) + room)}
    axis.set(**limits, xlabel="tokens (millions)", ylabel="validation loss")
    axis.legend(frameon=False, fontsize=8, loc="upper right", title="speedup", title_fontsize=8)


def _speedup(method: str, each: Curves, baseline: Curves | None) -> str:
    """A method's name with its speedup over the baseline, where it has one."""
    if baseline is None or method not in BASELINES:
        return METHOD_NAMES[method]
    curve = each.losses.mean(0)
    if math.isnan(curve[-1]):
        return f"{METHOD_NAMES[method]}: diverged"
    needed = crossing(each.tokens, curve, float(baseline.final.mean()))
    return f"{METHOD_NAMES[method]}: {'not reached' if needed == math.inf else f'{baseline.tokens[-1] / needed:.3f}'}"


def _sweep(rows: Sequence[Row]) -> "Figure":
    from ...engine.figures import panels

    trials = {method: _finite(trials_of(method, rows)) for methods in _FAMILIES.values() for method in methods}
    families = {name: those for name, methods in _FAMILIES.items() if (those := [m for m in methods if trials[m]])}
    figure, axes = panels(len(families) or 1, width=5.2, height=3.6)  # an empty panel where every trial diverged
    for axis, (name, methods) in zip(axes, families.items(), strict=False):
        for method in methods:
            _rates(axis, method, trials[method])
        axis.set(title=name, xlabel="learning rate of the hidden matrices", ylabel="final validation loss")
        _doublings(axis, [trial.lr for method in methods for trial in trials[method]])
        low, high = axis.get_ylim()
        axis.set_ylim(low, high + _ROOM * (high - low))
        axis.legend(frameon=False, fontsize=8, loc="upper right")
    return figure


def _doublings(axis: "Axes", rates: list[float]) -> None:
    """A logarithmic axis with ticks at the least rate, twice that, and so on."""
    least = min(rates)
    marks = [least * 2**i for i in range(1 + math.floor(math.log2(max(rates) / least) + 1e-6))]
    axis.set_xscale("log", base=2)
    axis.set_xticks(marks, labels=[f"{mark:g}" for mark in marks])


def _finite(trials: list[Trial]) -> list[Trial]:
    return sorted((trial for trial in trials if math.isfinite(trial.loss)), key=lambda trial: trial.lr)


def _rates(axis: "Axes", method: str, trials: list[Trial]) -> None:
    """Draw a line over the rates at the commonest level, crosses for other levels, a ring around the best trial."""
    levels = [trial.level for trial in trials]
    usual = max(levels, key=levels.count)
    line = [trial for trial in trials if trial.level == usual]
    axis.plot(
        [t.lr for t in line],
        [t.loss for t in line],
        marker="o",
        ms=3,
        lw=1.4,
        label=METHOD_NAMES[method],
        **METHOD_LOOKS[method],
    )
    others = [trial for trial in trials if trial.level != usual]
    axis.plot([t.lr for t in others], [t.loss for t in others], "x", ms=5, color=METHOD_LOOKS[method]["color"])
    top = best(trials)
    axis.plot([top.lr], [top.loss], "o", ms=9, mfc="none", color=METHOD_LOOKS[method]["color"])
