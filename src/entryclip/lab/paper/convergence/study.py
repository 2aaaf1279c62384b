"""The four algorithms run as the theorems state them, against their bounds (thm:post-hard-main and the other three).

The problem is nonconvex and everything the theorems ask for is known: with phi(u) = u^2 / (2 (1 + u^2)),

    f(X) = sum_ij phi((X - W)_ij) + phi(<p q^T, X - W>),    p, q flat unit vectors,

so that L = 2 (|phi''| <= 1, twice), inf f = 0 at X = W, and |G_ij| <= B = 0.325 (1 + 1/sqrt(mn)) wherever X goes. The
noise is the assumed one, (1-alpha) N(0, sigma^2) + alpha Cauchy(gamma). Post-clipping clips one noisy gradient
(eq:post-update-main); pre-clipping clips each of N samples, averages, and takes the matrix sign (eq:pre-update-main).
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from ....matrix.sign import msign
from ....noise import Cauchy, Contamination
from ....theory import Guarantee, guarantee
from ....theory.entry import OPERATOR_BOUNDS as METHODS

TITLE = "Convergence of the four algorithms against the theorems' bounds"
CAPTIONS = {
    "convergence": "The average that each theorem bounds, over growing runs: points with bars are the median and the "
    "range over seeds, solid lines the theorem, dash-dotted lines the same lemma with the exact bias and variance, the "
    "dotted line the value at the start. Post-clipping: the mean of the squared Frobenius norm over K iterations; "
    "pre-clipping: the mean nuclear norm over T iterations with N samples each.",
}
SLOPE_LIMIT = math.sqrt(27) / 16  # max |phi'|, at u = 1/sqrt(3)


@dataclass(frozen=True)
class Config:
    """Sizes of the runs, and the noise."""

    post: tuple[int, ...] = (1000, 3000, 10_000, 30_000)  # K
    pre: tuple[int, ...] = (400, 1200, 3600)  # T
    batches: tuple[int, ...] = (100, 300, 1000)  # N
    seeds: int = 8
    shape: tuple[int, int] = (6, 4)
    alpha: float = 0.05
    sigma: float = 0.1
    gamma: float = 0.1

    def __post_init__(self) -> None:
        sizes = (*self.post, *self.pre, *self.batches)
        if not (min(len(self.post), len(self.pre), len(self.batches)) >= 2 and min(sizes) >= 1):
            raise ValueError(f"post, pre and batches must be two or more positive sizes each, got {self}")
        if self.seeds < 3:
            raise ValueError(f"seeds must be at least 3, for intervals, got {self.seeds}")
        Contamination(self.alpha, self.sigma, Cauchy(self.gamma))  # refuses what is not a noise

    @classmethod
    def quick(cls) -> "Config":
        return cls(post=(1000, 2000), pre=(400, 800), batches=(100, 200), seeds=3)


@dataclass(frozen=True)
class Problem:
    """f at X = W + Y, written in Y; a batch of runs at once."""

    start: Tensor  # (runs, m, n)

    @classmethod
    def of(cls, config: Config, generator: torch.Generator) -> "Problem":
        """Every entry starts at distance 1 from its minimum, in the nonconvex part of phi."""
        signs = torch.randint(0, 2, (config.seeds, *config.shape), generator=generator) * 2 - 1
        return cls(signs.double())

    def value(self, y: Tensor) -> Tensor:
        """f, one number per run."""
        return _phi(y).sum(dim=(-2, -1)) + _phi(self._coupled(y))

    def gradient(self, y: Tensor) -> Tensor:
        return _slope(y) + (_slope(self._coupled(y)) / self._root)[:, None, None]

    def _coupled(self, y: Tensor) -> Tensor:
        return y.sum(dim=(-2, -1)) / self._root

    @property
    def _root(self) -> float:
        return math.sqrt(math.prod(self.start.shape[-2:]))

    @property
    def assumptions(self) -> dict[str, Any]:
        """B, L and Delta of ass:bounded-main and ass:smooth-main, the gap of the worst start."""
        bound = SLOPE_LIMIT * (1 + 1 / self._root)
        return {"bound": bound, "smoothness": 2.0, "gap": float(self.value(self.start).max())}


def _phi(u: Tensor) -> Tensor:
    return u.square() / (2 * (1 + u.square()))


def _slope(u: Tensor) -> Tensor:
    return u / (1 + u.square()).square()


def run(config: Config) -> Iterator[dict[str, Any]]:
    """One row per algorithm, size and seed: the average the theorem bounds, and the bound."""
    noise = Contamination(config.alpha, config.sigma, Cauchy(config.gamma))
    problem = Problem.of(config, torch.Generator().manual_seed(0))
    for operator in METHODS:
        for size in config.post:
            promise = guarantee("post", operator, noise, shape=config.shape, iterations=size, **problem.assumptions)
            yield from _rows(problem, promise, seed=size)
        for size in config.pre:
            for batch in config.batches:
                budget = {"iterations": size, "batch": batch}
                promise = guarantee("pre", operator, noise, shape=config.shape, **budget, **problem.assumptions)
                yield from _rows(problem, promise, seed=size + batch)


def _rows(problem: Problem, promise: Guarantee, seed: int) -> Iterator[dict[str, Any]]:
    measured = _descend(problem, promise, torch.Generator().manual_seed(seed))
    sharper = promise.sharper_rate
    first = _size(promise.stage, problem.gradient(problem.start))
    for run, (value, start) in enumerate(zip(measured.tolist(), first.tolist(), strict=True)):
        yield {
            "stage": promise.stage,
            "operator": promise.operator,
            "iterations": promise.iterations,
            "batch": promise.batch,
            "seed": run,
            "measured": value,
            "bound": promise.rate,
            "sharper": sharper,
            "start": start,
        }


def _descend(problem: Problem, promise: Guarantee, generator: torch.Generator) -> Tensor:
    """Run the algorithm on all seeds at once; the mean over the iterations of what the theorem bounds."""
    clip, y = METHODS[promise.operator].operator, problem.start.clone()
    total = torch.zeros(len(y), dtype=y.dtype)
    for noise in _draws(promise, len(y), generator):
        g = problem.gradient(y)
        total += _size(promise.stage, g)
        step = clip(g[:, None].float() + noise, promise.threshold).mean(dim=1, dtype=g.dtype)
        y -= promise.step_size * (step if promise.stage == "post" else msign(step, method="svd"))
    return total / promise.iterations


def _draws(promise: Guarantee, runs: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Noise of shape (runs, batch, m, n), one per iteration; drawn for many at once where they are small."""
    shape = (runs, promise.batch, *promise.shape)
    block = max(1, 2**16 // math.prod(shape))
    for start in range(0, promise.iterations, block):
        count = min(block, promise.iterations - start)
        yield from promise.noise.sample((count, *shape), generator, dtype=torch.float32)


def _size(stage: str, g: Tensor) -> Tensor:
    if stage == "post":
        return g.square().sum(dim=(-2, -1))
    return torch.linalg.matrix_norm(g, "nuc")


def plot(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Measured averages against the bounds, a panel per theorem."""
    from ...engine.figures import panels

    rows = list(rows)
    figure, axes = panels(2, rows=2, width=5.2, height=3.9)
    for axis, (stage, operator) in zip(axes, ((s, o) for s in ("post", "pre") for o in METHODS), strict=True):
        chosen = [row for row in rows if (row["stage"], row["operator"]) == (stage, operator)]
        batches = sorted({row["batch"] for row in chosen})
        colours = ["#c8352b"] if len(batches) == 1 else ["#e0a04f", "#c8352b", "#6b1f57"][: len(batches)]
        for batch, colour in zip(batches, colours, strict=True):
            _draw(axis, [row for row in chosen if row["batch"] == batch], colour)
        axis.axhline(np.median([row["start"] for row in chosen]), color="#555555", ls=":", lw=1.2)
        norm = r"mean $\|G\|_F^2$" if stage == "post" else r"mean $\|G\|_*$"
        letter = "K" if stage == "post" else "T"
        axis.set(xscale="log", yscale="log", xlabel=f"iterations {letter}", ylabel=norm)
        axis.set_title(f"{stage}-clipping, {operator}")
        sizes = sorted({row["iterations"] for row in chosen})
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.xaxis.minorticks_off()
        axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return {"convergence": figure}


def _draw(axis: Any, rows: list[dict[str, Any]], colour: str) -> None:
    table = _by_size(rows)
    sizes = sorted(table)
    middle = np.array([np.median([row["measured"] for row in table[size]]) for size in sizes])
    ends = np.array([[f(row["measured"] for row in table[size]) for size in sizes] for f in (min, max)])
    label = f", N = {rows[0]['batch']}" if rows[0]["stage"] == "pre" else ""
    axis.plot(sizes, [table[size][0]["bound"] for size in sizes], color=colour, lw=1.8, label="bound" + label)
    axis.plot(sizes, [table[size][0]["sharper"] for size in sizes], color=colour, lw=1, ls="-.")
    slope = _power(rows, "measured")
    ratios = [row["bound"] / row["measured"] for row in rows]
    name = f"measured{label}: slope\n{slope[0]:.3f} [{slope[1]:.3f}, {slope[2]:.3f}],\n"
    name += f"bound {min(ratios):.1f} to {max(ratios):.1f} times it"
    axis.errorbar(sizes, middle, yerr=np.abs(ends - middle), color=colour, fmt="o--", ms=4, lw=1, label=name)


def claims(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the theorems say, measured."""
    rows = list(rows)
    ratios = [row["bound"] / row["measured"] for row in rows]
    shares = [row["bound"] / row["start"] for row in rows]
    result = [
        {
            "claim": "every bound says something: it is below the value at the start",
            "measured": f"bound / start from {min(shares):.2f} to {max(shares):.2f}",
            "holds": max(shares) < 1,
        },
        {
            "claim": "the bound holds in every run",
            "measured": f"{len(rows)} runs, bound / measured from {min(ratios):.1f} to {max(ratios):.0f}",
            "holds": min(ratios) >= 1,
        },
        {
            "claim": "so does the lemma with the exact bias and variance, which is tighter",
            "measured": f"it / measured from {min(row['sharper'] / row['measured'] for row in rows):.1f}",
            "holds": all(row["measured"] <= row["sharper"] < row["bound"] for row in rows),
        },
    ]
    return result + [_slope_claim(rows, stage) for stage in ("post", "pre")]


def _slope_claim(rows: list[dict[str, Any]], stage: str) -> dict[str, Any]:
    """At the largest batch: the power of the iterations in the measured average and in the bound."""
    batch = max(row["batch"] for row in rows if row["stage"] == stage)
    words, fast = [], []
    for operator in METHODS:
        chosen = [r for r in rows if (r["stage"], r["operator"], r["batch"]) == (stage, operator, batch)]
        (found, low, high), (bound, _, _) = _power(chosen, "measured"), _power(chosen, "bound")
        words.append(f"{operator} {found:.2f} [{low:.2f}, {high:.2f}] (bound {bound:.2f})")
        fast.append(found <= bound + 0.05)
    name = "K" if stage == "post" else f"T, N = {batch}"
    return {
        "claim": f"{stage}-clipping: the measured average falls at least as fast as the bound, by its power of {name}",
        "measured": ", ".join(words),
        "holds": all(fast),
    }


def _power(rows: list[dict[str, Any]], column: str) -> tuple[float, float, float]:
    """The power of the iterations in a column: mean over seeds with its 95 % interval."""
    seeds: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        seeds.setdefault(row["seed"], []).append((math.log(row["iterations"]), math.log(row[column])))
    slopes = [float(stats.linregress(*np.array(points).T).slope) for points in seeds.values()]
    reach = float(stats.t.ppf(0.975, len(slopes) - 1) * np.std(slopes, ddof=1) / math.sqrt(len(slopes)))
    centre = float(np.mean(slopes))
    return centre, centre - reach, centre + reach


def _by_size(rows: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    table: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        table.setdefault(row["iterations"], []).append(row)
    return table
