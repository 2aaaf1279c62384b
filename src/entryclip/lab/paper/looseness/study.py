"""How loose the paper's bounds on one entry are: relative bias and variance against their exact values by quadrature.

`lem:hard-relative-bias-app`, `lem:smooth-relative-bias-app` and the two variance lemmas, over the threshold; and what
the looseness costs each theorem: its rate over the rate that the same lemma gives with the exact values.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....noise import Cauchy, Contamination
from ....theory import Guarantee, guarantee
from ....theory.entry import OPERATOR_BOUNDS as METHODS
from ....theory.entry import exact

TITLE = "How loose the bounds are"
CAPTIONS = {
    "looseness": "Relative bias (a) and variance (b) of a clipped entry over the threshold: the paper's bounds (thick) "
    "and the exact values at the worst entry (thin). Vertical lines: the smallest thresholds of the theorems, left "
    "post-clipping, right pre-clipping. (c) Each theorem's rate over the one with exact bias and variance.",
}


@dataclass(frozen=True)
class Config:
    """The noise, the bound B on the gradient, and what is varied."""

    alpha: float = 0.05
    sigma: float = 1.0
    gamma: float = 1.0
    bound: float = 1.0
    shape: tuple[int, int] = (768, 768)
    points: int = 41
    alphas: tuple[float, ...] = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.85, 1.0)

    def __post_init__(self) -> None:
        Contamination(self.alpha, self.sigma, Cauchy(self.gamma))  # refuses what is not a noise
        if not (3 <= self.points <= 10_000 and self.bound > 0 and self.alphas):
            raise ValueError(f"points must be from 3 to 10^4, bound positive, alphas some, got {self}")

    @classmethod
    def quick(cls) -> "Config":
        return cls(points=15, alphas=(0.0, 0.01, 0.1, 0.3, 1.0))


def run(config: Config) -> Iterator[dict[str, Any]]:
    """Rows over the threshold (kind entry) and over alpha (kind rate)."""
    noise = Contamination(config.alpha, config.sigma, Cauchy(config.gamma))
    for operator, method in METHODS.items():
        smallest = {stage: _promise(config, stage, operator, noise).threshold for stage in ("post", "pre")}
        for threshold in (config.bound * np.geomspace(1.2, 2000, config.points)).tolist():
            rho, variance = exact(operator, threshold, noise, config.bound)
            yield {
                "kind": "entry",
                "operator": operator,
                "threshold": threshold,
                "rho": method.rho(threshold, noise, config.bound),
                "exact_rho": rho,
                "variance": method.variance(threshold, noise),
                "exact_variance": variance,
                **{f"{stage}_threshold": value for stage, value in smallest.items()},
            }
    for stage in ("post", "pre"):
        for operator in METHODS:
            for alpha in config.alphas:
                noise = Contamination(alpha, config.sigma, Cauchy(config.gamma))
                promise = _promise(config, stage, operator, noise)
                row = {"kind": "rate", "stage": stage, "operator": operator, "alpha": alpha}
                yield {**row, "rate": promise.rate, "sharper": promise.sharper_rate}


def _promise(config: Config, stage: str, operator: str, noise: Contamination) -> Guarantee:
    return guarantee(stage, operator, noise, bound=config.bound, shape=config.shape, epsilon=0.1)


def plot(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Bounds and exact values over the threshold; rates over alpha."""
    from ...engine.figures import COLOURS, LINES, panels

    rows = list(rows)
    names = {"hard": "hard_clip", "smooth": "smooth_shrinkage"}
    figure, (bias, spread, rate) = panels(3, height=3.4)
    for operator, name in names.items():
        chosen = [row for row in rows if row["kind"] == "entry" and row["operator"] == operator]
        x = [row["threshold"] for row in chosen]
        for axis, column in ((bias, "rho"), (spread, "variance")):
            axis.plot(x, [row[column] for row in chosen], color=COLOURS[name], lw=2.2, label=f"{operator}, bound")
            axis.plot(
                x, [row["exact_" + column] for row in chosen], color=COLOURS[name], lw=1, label=f"{operator}, exact"
            )
            for stage in ("post", "pre"):
                axis.axvline(chosen[0][f"{stage}_threshold"], color=COLOURS[name], lw=0.8, ls=":")
        for stage, mark in (("post", "o"), ("pre", "s")):
            points = [r for r in rows if r["kind"] == "rate" and (r["stage"], r["operator"]) == (stage, operator)]
            ratio = [row["rate"] / row["sharper"] for row in points]
            style: Any = {"color": COLOURS[name], "ls": LINES[name], "marker": mark, "ms": 4, "lw": 1.5}
            rate.plot([row["alpha"] for row in points], ratio, label=f"{stage}, {operator}", **style)
    bias.set(xscale="log", yscale="log", xlabel="threshold", title=r"(a) relative bias $\rho$", ylim=(1e-4, 3))
    spread.set(xscale="log", yscale="log", xlabel="threshold", title="(b) variance")
    rate.set(xlabel=r"fraction $\alpha$", title="(c) rate / rate with exact values", ylim=(1, None))
    bias.legend(frameon=False, fontsize=8, loc="upper right")
    rate.legend(frameon=False, fontsize=8)
    return {"looseness": figure}


def claims(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lemmas hold; how far from sharp they are."""
    rows = list(rows)
    entries, rates = ([row for row in rows if row["kind"] == kind] for kind in ("entry", "rate"))
    found = {column: [row[column] / row["exact_" + column] for row in entries] for column in ("rho", "variance")}
    cost = [row["rate"] / row["sharper"] for row in rates]
    return [
        {
            "claim": f"the exact {name} is below its bound at every threshold",
            "measured": f"bound / exact from {min(found[column]):.2f} to {max(found[column]):.1f}",
            "holds": bool(min(found[column]) >= 1),
        }
        for name, column in (("relative bias", "rho"), ("variance", "variance"))
    ] + [
        {
            "claim": "looseness costs the rates a factor between 1 and 4",
            "measured": f"rate / rate with exact values from {min(cost):.2f} to {max(cost):.2f}",
            "holds": bool(min(cost) >= 1 and max(cost) <= 4),
        }
    ]
