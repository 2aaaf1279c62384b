"""Noise models side by side: the synthetic columns of `fig:noise_models`, and the rates of `tab:localization-regimes`.

The paper does not give the G of the synthetic columns; here it is a Gaussian matrix with a planted top direction. Its
table states the rates for flat u, v "in expectation", where the mean of R does not exist: medians are shown, for flat
and for random directions.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....diagnostics import localization, max_entry_correlation
from ....noise import Aligned, Contamination, Gaussian, LowRankSum, Spike, StudentT
from ....noise.laws import Noise
from ..planted import planted, unit_vector

TITLE = "Noise models and localization"
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
MODELS: dict[str, Noise] = {
    "Gaussian": Gaussian(1.0),
    "low-rank": LowRankSum(rank=16, scale=100.0),
    "heavy-tailed": StudentT(2.0),
    "mixture": Contamination(alpha=0.05, sigma=1.0, heavy=StudentT(2.0)),
}
EDGES = np.linspace(-12, 12, 121)  # of the marginals, in standard deviations
# The paper's table for flat u, v: the power of mn and of log(mn) in each quantity.
RATES = {
    "Gaussian": {"r_max": (-2, 1), "r": (-1, 0), "ratio": (-1, 1), "normalized": (0, 0)},
    "spike": {"r_max": (-1, 0), "r": (-1, 0), "ratio": (0, 0), "normalized": (1, -1)},
    "aligned": {"r_max": (-2, 0), "r": (0, 0), "ratio": (-2, 0), "normalized": (-1, -1)},
}


@dataclass(frozen=True)
class Config:
    """How much is drawn."""

    side: int = 768
    draws: int = 64
    strength: float = 2.0  # of G's top direction, in units of the norm of its Gaussian part
    sides: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)  # of the matrices for the rates
    entries: int = 3 * 10**8  # drawn for each rate at each size, in 101 to 1001 matrices

    def __post_init__(self) -> None:
        if min(self.side, *self.sides) < 16 or len(self.sides) < 3:
            raise ValueError(f"side and sides must be >= 16, at least three sides, got {self.side} and {self.sides}")
        if self.draws < 5 or self.entries < 1 or not 1 < self.strength < math.inf:
            given = f"{self.draws}, {self.entries}, {self.strength}"
            raise ValueError(f"draws must be >= 5, entries >= 1, strength above 1, got {given}")

    @classmethod
    def quick(cls) -> "Config":
        return cls(side=128, draws=24, sides=(32, 64, 128, 256), entries=10**6)


def run(config: Config) -> Iterator[dict[str, Any]]:
    """Rows of four kinds: one per draw, a summary and the marginal per model, and the rates over sizes."""
    generator = torch.Generator().manual_seed(0)
    G = planted(config.side, config.strength, generator)
    for model, noise in MODELS.items():
        yield from _model(model, noise.sample((config.draws, *G.shape), generator), G)
    for side in config.sides:
        draws = min(max(config.entries // side**2, 101), 1001)
        flat = torch.full((side, side), 1 / side)
        random = torch.outer(unit_vector(side, generator), unit_vector(side, generator))
        for directions, G in (("flat", flat), ("random", random)):
            yield from _rates(G, directions, draws, generator)


def _model(model: str, E: Tensor, G: Tensor) -> Iterator[dict[str, Any]]:
    found, top = localization(E, G), max_entry_correlation(E)
    for i in range(len(E)):
        yield {
            "kind": "draw",
            "model": model,
            "largest": float(top.largest[i]),
            "sigma": float(top.sigma[i]),
            "normalized": float(found.normalized[i]),
            "p_spike": float(found.p_spike[i]),
        }
    low, high = found.band()[0]
    yield {
        "kind": "summary",
        "model": model,
        "rho": top.rho,
        "rho_low": top.interval[0],
        "rho_high": top.interval[1],
        "median": float(found.median[0]),
        "band_low": float(low),
        "band_high": float(high),
        "p_median": float(found.p_median()[0]),
        "edge": math.sqrt(E.square().mean()) * 2 * math.sqrt(E.shape[-1]),  # sigma_1 of Gaussian noise of this size
    }
    density, _ = np.histogram((E / E.double().std()).numpy(), EDGES)
    density = density / E.numel() / np.diff(EDGES)
    for x, value in zip((EDGES[1:] + EDGES[:-1]) / 2, density, strict=True):
        yield {"kind": "marginal", "model": model, "x": float(x), "density": float(value)}


def _rates(G: Tensor, directions: str, draws: int, generator: torch.Generator) -> Iterator[dict[str, Any]]:
    """Medians of the four quantities for the three noise models of the table."""
    for name, noise in (("Gaussian", Gaussian(1.0)), ("spike", Spike(1.0)), ("aligned", Aligned(G))):
        count = 1 if name == "aligned" else draws
        pieces = [min(2 * 10**7 // G.numel(), count - start) for start in range(0, count, 2 * 10**7 // G.numel())]
        found = [localization(noise.sample((piece, *G.shape), generator), G) for piece in pieces]
        medians = {q: float(np.median(np.concatenate([getattr(each, q) for each in found]))) for q in RATES[name]}
        yield {"kind": "rate", "noise": name, "directions": directions, "side": G.shape[0], **medians}


def slope(rows: list[dict[str, Any]], noise: str, quantity: str, directions: str = "flat") -> tuple[float, float]:
    """The measured power of mn, the table's power of log(mn) taken out, and the half width of its 95 % interval."""
    from scipy import stats

    mine = [row for row in rows if row["kind"] == "rate" and (row["noise"], row["directions"]) == (noise, directions)]
    size = np.array([2 * math.log(row["side"]) for row in mine])
    value = np.log([row[quantity] for row in mine]) - RATES[noise][quantity][1] * np.log(size)
    fit = stats.linregress(size, value)
    return float(fit.slope), float(fit.stderr * stats.t.ppf(0.975, len(mine) - 2))


def plot(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Three strips with a panel per model, and the rates."""
    from . import figures

    rows = list(rows)
    return {
        "marginals": figures.marginals(rows),
        "spectral_max": figures.spectral_max(rows),
        "localization": figures.localization(rows),
        "rates": figures.rates(rows, RATES),
    }


def claims(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the paper reads off its figure and table, measured."""
    rows = list(rows)
    of = {row["model"]: row for row in rows if row["kind"] == "summary"}
    worst = max(
        ((noise, quantity, slope(rows, noise, quantity)[0] - power) for noise, table in RATES.items()
         for quantity, (power, _) in table.items()),
        key=lambda each: abs(each[2]),
    )  # fmt: skip
    beyond = [row["normalized"] > 10 for row in rows if row["kind"] == "draw" and row["model"] == "Gaussian"]
    raised = [random / flat for random, flat in zip(_baselines(rows, "random"), _baselines(rows, "flat"), strict=True)]
    return [
        {
            "claim": "the largest entry drives sigma_1 under heavy-tailed entries and their mixture",
            "measured": ", ".join(f"{name}: {_rho(of[name])}" for name in ("heavy-tailed", "mixture")),
            "holds": bool(min(of["heavy-tailed"]["rho_low"], of["mixture"]["rho_low"]) > 0.8),
        },
        {
            "claim": "and not under Gaussian and low-rank noise",
            "measured": ", ".join(f"{name}: {_rho(of[name])}" for name in ("Gaussian", "low-rank")),
            "holds": bool(max(of["Gaussian"]["rho_high"], of["low-rank"]["rho_high"]) < 0.8),
        },
        {
            "claim": "R-hat is near 1 for Gaussian noise and far above for heavy-tailed entries and their mixture",
            "measured": ", ".join(_median(of[name]) for name in ("Gaussian", "heavy-tailed", "mixture")),
            "holds": bool(_inside(of["Gaussian"]) and all(_above(of[name]) for name in ("heavy-tailed", "mixture"))),
        },
        {
            "claim": "R-hat does not tell random low-rank noise from Gaussian noise",
            "measured": _median(of["low-rank"]),
            "holds": bool(_inside(of["low-rank"])),
        },
        {
            "claim": "a single R-hat says nothing: for Gaussian noise it exceeds 10 in about one draw of six",
            "measured": f"{np.mean(beyond):.0%} of {len(beyond)} draws",
            "holds": bool(abs(np.mean(beyond) - 0.17) < 3 * math.sqrt(0.14 / len(beyond))),
        },
        {
            "claim": "the table's rates hold for flat directions (power of mn within .1)",
            "measured": f"farthest: {worst[1]} of {worst[0]} noise, off by {worst[2]:+.3f}",
            "holds": bool(abs(worst[2]) < 0.1),
        },
        {
            "claim": "the table is for flat directions: random ones raise the median of R under Gaussian noise",
            "measured": f"{min(raised):.1f} to {max(raised):.1f} times over these sizes",
            "holds": bool(min(raised) > 2),
        },
    ]


def _baselines(rows: list[dict[str, Any]], directions: str) -> list[float]:
    """The median of R under Gaussian noise at each size: what R was divided by."""
    mine = [row for row in rows if row["kind"] == "rate" and row["noise"] == "Gaussian"]
    return [row["ratio"] / row["normalized"] for row in mine if row["directions"] == directions]


def _rho(row: dict[str, Any]) -> str:
    return f"rho {row['rho']:.3f} [{row['rho_low']:.3f}, {row['rho_high']:.3f}]"


def _median(row: dict[str, Any]) -> str:
    return f"{row['model']}: median {row['median']:.2g}, null band [{row['band_low']:.2f}, {row['band_high']:.2f}]"


def _inside(row: dict[str, Any]) -> bool:
    return bool(row["band_low"] <= row["median"] <= row["band_high"])


def _above(row: dict[str, Any]) -> bool:
    return bool(row["median"] > row["band_high"])
