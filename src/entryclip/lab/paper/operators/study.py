"""The entry-wise operators side by side: the paper's `fig:clipping_ops` and `fig:clipping-comparison`.

At c = tau/e the damping factors exp(-|y|/tau) and min(1, c/|y|) touch at |y| = tau, where both are 1/e. The paper adds
that smooth shrinkage damps more beyond tau; in fact it does so at every other y, also below.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....operators import hard_clip, smooth_shrinkage, soft_threshold

TITLE = "Entry-wise operators"
CAPTIONS = {
    "clipping_ops": "Three entry-wise operators at the same threshold. Hard clipping stays at the threshold, smooth "
    "shrinkage peaks there at 1/e of it and falls to zero, soft thresholding keeps only what lies beyond.",
    "clipping_comparison": "At the tangent calibration c = tau/e the damping factors touch at |y| = tau with value 1/e "
    "(a); smooth shrinkage damps more at every other y. The outputs (b): hard clipping stays at c, smooth shrinkage "
    "peaks at c and decays.",
}


@dataclass(frozen=True)
class Config:
    """What is drawn."""

    tau: float = 1.0  # the common threshold
    reach: float = 6.0  # the largest |x|, in units of tau
    points: int = 601

    def __post_init__(self) -> None:
        if not (0 < self.tau < math.inf and 1 < self.reach < math.inf):
            raise ValueError(f"tau must be positive, reach above 1, both finite, got {self.tau} and {self.reach}")
        if not 7 <= self.points <= 10**6:
            raise ValueError(f"points must be from 7 to 10^6, got {self.points}")

    @classmethod
    def quick(cls) -> "Config":
        return cls()  # it takes no time


def run(config: Config) -> Iterator[dict[str, Any]]:
    """One row per operator, threshold and point: the output and the damping factor output / x."""
    x = np.linspace(0, config.reach * config.tau, config.points)
    x[np.abs(x - config.tau).argmin()] = config.tau  # the tangent point itself
    curves = [(operator, config.tau) for operator in (hard_clip, smooth_shrinkage, soft_threshold)]
    curves.append((hard_clip, config.tau / math.e))  # the tangent calibration
    for operator, threshold in curves:
        output = operator(x, threshold)
        slope = operator(np.array([1e-9 * threshold]), threshold)[0] / (1e-9 * threshold)  # the factor's limit at 0
        factor = np.divide(output, x, out=np.full_like(x, slope), where=x > 0)
        for point, value, damping in zip(x, output, factor, strict=True):
            yield {
                "operator": operator.__name__,
                "threshold": threshold,
                "x": float(point),
                "output": float(value),
                "factor": float(damping),
            }


def plot(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The paper's two figures."""
    from ...engine.figures import panels

    curves = _curves(rows)
    tau = max(threshold for _, threshold in curves)
    figure, (axis,) = panels(1, width=6.0)
    axis.plot(*(2 * [curves["hard_clip", tau]["x"]]), color="#999999", lw=1, ls=":", label="identity")
    for name in ("hard_clip", "smooth_shrinkage", "soft_threshold"):
        _draw(axis, curves, name, tau, "output")
    axis.set(xlabel="x", ylabel="output", ylim=(0, 2.2 * tau), xlim=(0, 5 * tau))
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    comparison, (damping, output) = panels(2)
    for axis, column, label in ((damping, "factor", "(a) damping factor"), (output, "output", "(b) output")):
        _draw(axis, curves, "hard_clip", tau / math.e, column)
        _draw(axis, curves, "smooth_shrinkage", tau, column)
        axis.axvline(tau, color="#999999", lw=0.8, ls=":")
        axis.set(xlabel="|y|", title=label, xlim=(0, 6 * tau), ylim=(0, None))
    damping.annotate(
        r"tangent at $|y| = \tau$: $1/e$", (tau, 1 / math.e), (2 * tau, 0.6), arrowprops={"arrowstyle": "->"}
    )
    damping.legend(loc="upper right", frameon=False)
    return {"clipping_ops": figure, "clipping_comparison": comparison}


def claims(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the text says of the figures, measured on the rows."""
    curves = _curves(rows)
    tau = max(threshold for _, threshold in curves)
    smooth, hard = curves["smooth_shrinkage", tau], curves["hard_clip", tau / math.e]
    x, gap = np.array(smooth["x"]), np.array(hard["factor"]) - np.array(smooth["factor"])
    at = int(np.argmin(np.abs(x - tau)))
    away = (x > 0) & (np.arange(len(x)) != at)
    return [
        {
            "claim": "at c = tau/e both damping factors are 1/e at |y| = tau",
            "measured": f"hard {hard['factor'][at]:.6f}, smooth {smooth['factor'][at]:.6f}, 1/e = {1 / math.e:.6f}",
            "holds": bool(abs(gap[at]) < 1e-12 and abs(smooth["factor"][at] - 1 / math.e) < 1e-12),
        },
        {
            "claim": "beyond tau smooth shrinkage damps strictly more",
            "measured": f"smallest gap beyond tau {gap[x > x[at]].min():.2e}",
            "holds": bool((gap[x > x[at]] > 0).all()),
        },
        {
            "claim": "and so it does at every other y (the paper does not say so)",
            "measured": f"smallest gap at y != 0, tau: {gap[away].min():.2e}",
            "holds": bool((gap[away] > 0).all()),
        },
    ]


def _curves(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, float], dict[str, list[float]]]:
    curves: dict[tuple[str, float], dict[str, list[float]]] = {}
    for row in rows:
        curve = curves.setdefault((row["operator"], row["threshold"]), {"x": [], "output": [], "factor": []})
        for column, values in curve.items():
            values.append(row[column])
    return curves


def _draw(
    axis: Any, curves: dict[tuple[str, float], dict[str, list[float]]], name: str, threshold: float, column: str
) -> None:
    from ...engine.figures import COLOURS, LINES

    curve = curves[name, threshold]
    axis.plot(curve["x"], curve[column], color=COLOURS[name], ls=LINES[name], lw=2, label=name.replace("_", " "))
