"""Mean squared errors of sigma_1 and of the entries after clipping, for four kinds of noise."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ....diagnostics import localization
from ....noise import Aligned, Contamination, Gaussian, Spike, StudentT
from ....noise.laws import Noise
from ...engine.study import Piece, Row
from ..entrywise import OPERATORS
from ..synthetic_signal import synthetic_signal
from ..typed_rows import TypedRow

REGIMES = ("aligned", "Gaussian", "small spike", "large spikes")


@dataclass(frozen=True)
class SpectralMseConfig:
    """The signal, the noise and the thresholds."""

    side: int = 192
    draws: int = 64
    strength: float = 2.0  # of G's strong direction, in units of the norm of its Gaussian part of unit entries
    size: float = 0.2  # ||E|| over the gap between G's two largest singular values; not for the large spikes
    thresholds: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0)

    def __post_init__(self) -> None:
        if self.side < 16 or self.draws < 5 or not (1 < self.strength < math.inf and 0 < self.size < math.inf):
            given = f"{self.side}, {self.draws}, {self.strength}, {self.size}"
            raise ValueError(f"side must be >= 16, draws >= 5, strength above 1, size positive, got {given}")
        if not self.thresholds or not all(0 < t < math.inf for t in self.thresholds):
            raise ValueError(f"thresholds must be positive and finite, at least one, got {self.thresholds}")

    @classmethod
    def quick(cls) -> "SpectralMseConfig":
        """A few seconds: smaller matrices, fewer draws and thresholds."""
        return cls(side=64, draws=24, thresholds=(1.0, 2.0, 4.0, 8.0, 16.0, 64.0))


@dataclass(frozen=True, kw_only=True)
class ClippedError(TypedRow):
    """The errors of one operator at one threshold, over all draws of one kind of noise."""

    regime: str  # one of REGIMES
    operator: str  # "none" or a key of OPERATORS
    threshold: float | None  # None without clipping
    spectral: float  # the left-hand side: mean squared error of sigma_1
    entrywise: float  # the right-hand side: mean squared Frobenius norm of Delta
    tightest: float  # the largest ratio of the two sides in a single draw
    normalized: float  # the median of R-hat of Delta
    band_low: float  # the 95 % band of that median under Gaussian noise
    band_high: float

    @property
    def tightness(self) -> float:
        """The share of the entry-wise error that shows in sigma_1: 1 where the bound is sharp."""
        return self.spectral / self.entrywise


def run_unit(config: SpectralMseConfig, piece: Piece) -> Iterator[Row]:
    """Yield one row per kind of noise, operator and threshold, all of a noise on the same draws; `piece` is empty."""
    generator = torch.Generator().manual_seed(0)
    G = synthetic_signal(config.side, config.strength, generator).double()
    band = None
    for regime in REGIMES:
        E = sample_noise(regime, G, config, generator)
        band = band or localization(E, G, scales=None).band()[0].tolist()  # depends on G and the number of draws alone
        yield _measure(regime, "none", None, G, G + E, band).to_row()
        for name, operator in OPERATORS.items():
            for threshold in config.thresholds:
                yield _measure(regime, name, threshold, G, operator(G + E, threshold), band).to_row()


def sample_noise(regime: str, G: Tensor, config: SpectralMseConfig, generator: torch.Generator) -> Tensor:
    """Draw the noise E of a regime for the signal G (m, n); returns shape (draws, m, n)."""
    shape, (first, second) = (config.draws, *G.shape), torch.linalg.svdvals(G)[:2].tolist()
    size = config.size * (first - second)
    bulk = size / (2 * math.sqrt(G.shape[0]))  # the scale of Gaussian entries with that spectral norm
    if regime == "aligned":
        amplitude = torch.randn(config.draws, 1, 1, generator=generator, dtype=torch.float64)
        return amplitude * Aligned(G, size).sample(shape, generator, dtype=torch.float64)
    laws: dict[str, Noise] = {
        "Gaussian": Gaussian(bulk),
        "small spike": Spike(size),
        "large spikes": Contamination(0.001, bulk, StudentT(3.0, first / 2)),
    }
    return laws[regime].sample(shape, generator, dtype=torch.float64)


def _measure(
    regime: str, operator: str, threshold: float | None, G: Tensor, estimate: Tensor, band: list[float]
) -> ClippedError:
    """Compare estimates (draws, m, n) with the signal G (m, n)."""
    delta = estimate - G
    spectral = (torch.linalg.matrix_norm(estimate, 2) - torch.linalg.matrix_norm(G, 2)).square()
    entrywise = delta.square().sum((-2, -1))
    return ClippedError(
        regime=regime,
        operator=operator,
        threshold=threshold,
        spectral=float(spectral.mean()),
        entrywise=float(entrywise.mean()),
        tightest=float((spectral / entrywise).max()),
        normalized=float(localization(delta, G, scales=None).median[0]),
        band_low=band[0],
        band_high=band[1],
    )
