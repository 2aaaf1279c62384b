"""The figures: loss against tokens, and the tuning."""

import math
from collections.abc import Iterable
from typing import Any

from .config import POST, PRE
from .savings import Curves, crossing, curves
from .search import Trial, best
from .tuning import trials_of
from .verdicts import BASELINES, NAMES

Row = dict[str, Any]
FAMILIES = {"post-clipping": POST, "pre-clipping": PRE}
LOOK: dict[str, dict[str, Any]] = {
    "adamw": {"color": "#555555", "ls": (0, (1, 1.5))},
    "muon": {"color": "#555555", "ls": (0, (1, 1.5))},
    "adamw-norm": {"color": "#8a6d1c", "ls": "dotted"},
    "spectra": {"color": "#2f8f5b", "ls": "dashdot"},
    "post-hard": {"color": "#1f5fa8", "ls": (0, (5, 2))},
    "pre-hard": {"color": "#1f5fa8", "ls": (0, (5, 2))},
    "post-smooth": {"color": "#c8352b", "ls": "solid"},
    "pre-smooth": {"color": "#c8352b", "ls": "solid"},
    "post-smooth-rms": {"color": "#6b4fa0", "ls": (0, (3, 1, 1, 1))},
}


def plot(rows: Iterable[Row]) -> dict[str, Any]:
    """`nano-gpt-result` and `lr-sweep`; a family of methods that has no rows has no panel."""
    rows = list(rows)
    return {"nano-gpt-result": _result(curves(rows)), "lr-sweep": _sweep(rows)}


def _result(found: dict[str, Curves]) -> Any:
    """Above the whole run, below its last fifth: there the curves part."""
    from ..figures import panels

    families = {name: those for name, methods in FAMILIES.items() if (those := [m for m in methods if m in found])}
    figure, axes = panels(len(families), rows=2, width=5.2, height=3.6)
    for i, (name, methods) in enumerate(families.items()):
        whole, last = axes[i], axes[i + len(families)]
        baseline = found.get(FAMILIES[name][0])
        for method in methods:
            each = found[method]
            for axis, label in ((whole, NAMES[method]), (last, _label(method, each, baseline))):
                axis.plot(each.tokens / 1e6, each.losses.mean(0), label=label, lw=1.5, **LOOK[method])
        whole.set(title=name, xlabel="tokens (millions)", ylabel="validation loss")
        whole.legend(frameon=False, fontsize=8)
        _enlarge(last, [found[method] for method in methods], baseline)
    return figure


def _enlarge(axis: Any, there: list[Curves], baseline: Curves | None) -> None:
    """The last fifth, with the level to reach; a method far above it is out of sight."""
    end = max(each.tokens[-1] for each in there) / 1e6
    if baseline is not None:
        level = float(baseline.final.mean())
        axis.axhline(level, color="#111111", lw=0.8, ls=(0, (6, 3)))
        axis.annotate(rf"$\ell_0$ = {level:.3f}", (0.8 * end, level), (3, 3), textcoords="offset points", fontsize=8)
    ends = [float(each.final.mean()) for each in there if math.isfinite(each.final.mean())]
    low = min(ends, default=0.0)
    late = [float(loss) for each in there for loss in each.losses.mean(0)[each.tokens >= 0.8e6 * end]]
    high = min(max((loss for loss in late if math.isfinite(loss)), default=1.0), low + 0.4)
    room = 0.05 * (high - low) + 1e-3
    axis.locator_params(axis="x", nbins=5)
    axis.set(
        xlim=(0.8 * end, end), ylim=(low - 2 * room, high + room), xlabel="tokens (millions)", ylabel="validation loss"
    )
    axis.legend(frameon=False, fontsize=8, loc="upper right", title="speedup", title_fontsize=8)


def _label(method: str, each: Curves, baseline: Curves | None) -> str:
    if baseline is None or method not in BASELINES:
        return NAMES[method]
    needed = crossing(each.tokens, each.losses.mean(0), float(baseline.final.mean()))
    speedup = "not reached" if needed == math.inf else f"{baseline.tokens[-1] / needed:.3f}"
    return f"{NAMES[method]}: {speedup}"


def _sweep(rows: list[Row]) -> Any:
    from ..figures import panels

    trials = {method: _finite(trials_of(method, rows)) for methods in FAMILIES.values() for method in methods}
    families = {name: those for name, methods in FAMILIES.items() if (those := [m for m in methods if trials[m]])}
    figure, axes = panels(len(families), width=5.2, height=3.6)
    for axis, (name, methods) in zip(axes, families.items(), strict=True):
        for method in methods:
            _rates(axis, method, trials[method])
        axis.set(
            title=name, xscale="log", xlabel="learning rate of the hidden matrices", ylabel="final validation loss"
        )
        axis.legend(frameon=False, fontsize=8)
    return figure


def _finite(trials: list[Trial]) -> list[Trial]:
    return sorted((trial for trial in trials if math.isfinite(trial.loss)), key=lambda trial: trial.lr)


def _rates(axis: Any, method: str, trials: list[Trial]) -> None:
    """A line over the rates at the level that most trials had, crosses for the others, a ring around the best."""
    levels = [trial.level for trial in trials]
    usual = max(levels, key=levels.count)
    line = [trial for trial in trials if trial.level == usual]
    axis.plot(
        [t.lr for t in line], [t.loss for t in line], marker="o", ms=3, lw=1.4, label=NAMES[method], **LOOK[method]
    )
    others = [trial for trial in trials if trial.level != usual]
    axis.plot([t.lr for t in others], [t.loss for t in others], "x", ms=5, color=LOOK[method]["color"])
    top = best(trials)
    axis.plot([top.lr], [top.loss], "o", ms=9, mfc="none", color=LOOK[method]["color"])
