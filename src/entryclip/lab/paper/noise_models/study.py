"""Draws from noise models: their largest entries, top singular values, marginals and localization ratios."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ....diagnostics import localization, max_entry_correlation
from ....noise import Aligned, Contamination, Gaussian, LowRankSum, Spike, StudentT
from ....noise.laws import Noise
from ...engine.study import Piece, Row
from ..synthetic_signal import synthetic_signal, unit_vector
from ..typed_rows import TypedRow

MODELS: dict[str, Noise] = {
    "Gaussian": Gaussian(1.0),
    "low-rank": LowRankSum(rank=16, scale=100.0),
    "heavy-tailed": StudentT(2.0),
    "mixture": Contamination(alpha=0.05, sigma=1.0, heavy=StudentT(2.0)),
}
EDGES = np.linspace(-12, 12, 121)  # of the bins of the marginals, in standard deviations
AT_ONCE = 2 * 10**7  # entries drawn at once for the rates, which bounds the memory


@dataclass(frozen=True)
class NoiseModelsConfig:
    """The sizes of the matrices and how many are drawn."""

    side: int = 768
    draws: int = 64
    strength: float = 2.0  # of G's strong direction, in units of the norm of its Gaussian part
    sides: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)  # of the matrices for the rates
    entries: int = 3 * 10**8  # drawn for each rate at each size, in 101 to 1001 matrices

    def __post_init__(self) -> None:
        if min(self.side, *self.sides) < 16 or len(self.sides) < 3:
            raise ValueError(f"side and sides must be >= 16, at least three sides, got {self.side} and {self.sides}")
        if self.draws < 5 or self.entries < 1 or not 1 < self.strength < math.inf:
            given = f"{self.draws}, {self.entries}, {self.strength}"
            raise ValueError(f"draws must be >= 5, entries >= 1, strength above 1, got {given}")

    @classmethod
    def quick(cls) -> "NoiseModelsConfig":
        """A few seconds: fewer and smaller matrices."""
        return cls(side=128, draws=16, sides=(32, 64, 128), entries=10**6)


@dataclass(frozen=True, kw_only=True)
class NoiseDraw(TypedRow):
    """One matrix drawn from a noise model."""

    kind: str = "draw"
    model: str  # a key of MODELS
    largest: float  # the largest |entry|
    sigma: float  # the largest singular value
    normalized: float  # R-hat
    p_spike: float


@dataclass(frozen=True, kw_only=True)
class ModelSummary(TypedRow):
    """All draws of a noise model: rank correlation of largest entry and sigma_1, and the median of R-hat."""

    kind: str = "summary"
    model: str
    rho: float
    rho_low: float
    rho_high: float
    median: float
    band_low: float  # the 95 % band of the median under Gaussian noise
    band_high: float
    p_median: float
    edge: float  # sigma_1 of Gaussian noise with the same mean square


@dataclass(frozen=True, kw_only=True)
class MarginalBin(TypedRow):
    """The density of a noise model's entries in one bin, in units of their standard deviation."""

    kind: str = "marginal"
    model: str
    x: float
    density: float


@dataclass(frozen=True, kw_only=True)
class LocalizationMedians(TypedRow):
    """Medians of the localization quantities over many draws at one size of the matrix."""

    kind: str = "rate"
    noise: str
    directions: str  # "flat" or "random": the singular vectors u, v of the signal
    side: int
    r_max: float
    r: float
    ratio: float  # R
    normalized: float  # R-hat


def run_unit(config: NoiseModelsConfig, piece: Piece) -> Iterator[Row]:
    """Yield rows of four kinds; the study is one unit, so `piece` is empty.

    Each model has a row per draw, a summary and the bins of its marginal. Each size has rows of medians.
    """
    generator = torch.Generator().manual_seed(0)
    G = synthetic_signal(config.side, config.strength, generator)
    for model, noise in MODELS.items():
        E = noise.sample((config.draws, *G.shape), generator)
        yield from (found.to_row() for found in (*_localization(model, E, G), *_marginal(model, E)))
    for side in config.sides:
        draws = min(max(config.entries // side**2, 101), 1001)
        flat = torch.full((side, side), 1 / side)
        random = torch.outer(unit_vector(side, generator), unit_vector(side, generator))
        for directions, G in (("flat", flat), ("random", random)):
            yield from (found.to_row() for found in _medians(G, directions, draws, generator))


def _localization(model: str, E: Tensor, G: Tensor) -> Iterator[NoiseDraw | ModelSummary]:
    """Measure the draws E (draws, m, n) against the signal G (m, n), one by one and together."""
    found, top = localization(E, G, scales=None), max_entry_correlation(E)
    for i in range(len(E)):
        yield NoiseDraw(
            model=model,
            largest=float(top.largest[i]),
            sigma=float(top.sigma[i]),
            normalized=float(found.normalized[i]),
            p_spike=float(found.p_spike[i]),
        )
    low, high = found.band()[0]
    yield ModelSummary(
        model=model,
        rho=top.rho,
        rho_low=top.interval[0],
        rho_high=top.interval[1],
        median=float(found.median[0]),
        band_low=float(low),
        band_high=float(high),
        p_median=float(found.p_median()[0]),
        edge=math.sqrt(E.square().mean()) * 2 * math.sqrt(E.shape[-1]),
    )


def _marginal(model: str, E: Tensor) -> Iterator[MarginalBin]:
    """Yield the density of all entries of the draws E, bin by bin."""
    counts, _ = np.histogram((E / E.double().std()).numpy(), EDGES)
    density = counts / E.numel() / np.diff(EDGES)
    for x, value in zip((EDGES[1:] + EDGES[:-1]) / 2, density, strict=True):
        yield MarginalBin(model=model, x=float(x), density=float(value))


def _medians(G: Tensor, directions: str, draws: int, generator: torch.Generator) -> Iterator[LocalizationMedians]:
    """Yield the medians for the three kinds of noise of the paper's table."""
    laws: dict[str, Noise] = {"Gaussian": Gaussian(1.0), "spike": Spike(1.0), "aligned": Aligned(G)}
    for name, noise in laws.items():
        count = 1 if name == "aligned" else draws  # aligned noise is the same in every draw
        most = max(1, AT_ONCE // G.numel())
        parts = [min(most, count - start) for start in range(0, count, most)]
        found = [localization(noise.sample((part, *G.shape), generator), G, scales=None) for part in parts]
        quantities = ("r_max", "r", "ratio", "normalized")
        medians = [float(np.median(np.concatenate([getattr(each, q) for each in found]))) for q in quantities]
        r_max, r, ratio, normalized = medians
        yield LocalizationMedians(
            noise=name,
            directions=directions,
            side=G.shape[0],
            r_max=r_max,
            r=r,
            ratio=ratio,
            normalized=normalized,
        )
