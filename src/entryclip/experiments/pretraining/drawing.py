"""The figures: loss against tokens, and the tuning."""

import math
from collections.abc import Iterable
from typing import Any

from .config import POST, PRE
from .savings import Curves, crossing, curves
from .search import best
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
    from ..figures import panels

    figure, axes = panels(2, width=5.2, height=4.0)
    for axis, (name, methods) in zip(axes, FAMILIES.items(), strict=True):
        there = {method: found[method] for method in methods if method in found}
        baseline = there.get(methods[0])
        for method, each in there.items():
            axis.plot(
                each.tokens / 1e6, each.losses.mean(0), label=_label(method, each, baseline), lw=1.6, **LOOK[method]
            )
        if baseline is not None:
            _mark(axis, baseline, there)
        axis.set(title=name, xlabel="tokens (millions)", ylabel="validation loss")
        axis.legend(frameon=False, fontsize=8, loc="upper right", title="speedup" if baseline is not None else None)
    return figure


def _mark(axis: Any, baseline: Curves, there: dict[str, Curves]) -> None:
    """The level to reach, and the last fifth of the run enlarged: there the curves part."""
    level = float(baseline.final.mean())
    axis.axhline(level, color="#111111", lw=0.8, ls=(0, (6, 3)))
    axis.annotate(rf"$\ell_0$ = {level:.3f}", (0, level), (4, -11), textcoords="offset points", fontsize=8)
    lens = axis.inset_axes((0.47, 0.3, 0.5, 0.32))
    for method, each in there.items():
        lens.plot(each.tokens / 1e6, each.losses.mean(0), lw=1.3, **LOOK[method])
    lens.axhline(level, color="#111111", lw=0.8, ls=(0, (6, 3)))
    last = baseline.tokens[-1] / 1e6
    ends = [float(each.final.mean()) for each in there.values() if math.isfinite(each.final.mean())]
    near = [value for value in ends if value < level + 0.15]
    lens.set(xlim=(0.8 * last, last), ylim=(min(near) - 0.02, max([level, *near]) + 0.06))
    lens.tick_params(labelsize=7)


def _label(method: str, each: Curves, baseline: Curves | None) -> str:
    if baseline is None or method not in BASELINES:
        return NAMES[method]
    needed = crossing(each.tokens, each.losses.mean(0), float(baseline.final.mean()))
    speedup = "not reached" if needed == math.inf else f"{baseline.tokens[-1] / needed:.3f}"
    return f"{NAMES[method]}: {speedup}"


def _sweep(rows: list[Row]) -> Any:
    from ..figures import panels

    figure, axes = panels(2, width=5.2, height=3.6)
    for axis, (name, methods) in zip(axes, FAMILIES.items(), strict=True):
        for method in methods:
            trials = sorted(trial for trial in trials_of(method, rows) if math.isfinite(trial.loss))
            if trials:
                _rates(axis, method, trials)
        axis.set(
            title=name, xscale="log", xlabel="learning rate of the hidden matrices", ylabel="final validation loss"
        )
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=8)
    return figure


def _rates(axis: Any, method: str, trials: list[Any]) -> None:
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
