"""Errors of sigma_1 and of the top direction under each clip, noise and threshold, and the time of a call."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....matrix.clips import soft_spectral_clip, spectral_clip
from ....noise import Cauchy, Contamination, Gaussian, HeavyLowRank, LowRankSum, StudentT
from ....noise.laws import Noise
from ....operators import global_clip
from ...engine.study import Piece, Row
from ..entrywise import OPERATORS
from ..synthetic_signal import synthetic_signal
from ..typed_rows import TypedRow

CLIPS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "global": global_clip,
    **OPERATORS,
    "spectral": spectral_clip,
    "soft spectral": soft_spectral_clip,
}
NOISES: dict[str, Noise] = {
    "Gaussian": Gaussian(1.0),
    "low-rank": LowRankSum(rank=16, scale=1.0),
    "contamination": Contamination(alpha=0.05, sigma=1.0, heavy=Cauchy(3.0)),
    "heavy low-rank": HeavyLowRank(rank=16, heavy=StudentT(2.0)),
}


@dataclass(frozen=True)
class SpectralControlConfig:
    """The signal, the noise and the thresholds."""

    side: int = 192
    draws: int = 32
    strength: float = 2.0  # of G's strong direction, in units of the norm of its Gaussian part
    noise: float = 2.0  # the median of ||E||, in units of sigma_1(G)
    # in units of the norm that the clip bounds: the root mean square entry of G, its Frobenius or its spectral norm
    thresholds: tuple[float, ...] = (0.5, 0.7, 1.0, 1.4, 2.0, 4.0, 8.0, 16.0, 32.0)
    timed_side: int = 768

    def __post_init__(self) -> None:
        if min(self.side, self.timed_side) < 16 or self.draws < 1:
            given = f"{self.side}, {self.timed_side}, {self.draws}"
            raise ValueError(f"side and timed_side must be >= 16, draws >= 1, got {given}")
        if not all(0 < x < math.inf for x in (self.strength, self.noise, *self.thresholds)) or not self.thresholds:
            given = f"{self.strength}, {self.noise}, {self.thresholds}"
            needed = "strength, noise and thresholds must be positive and finite, at least one threshold"
            raise ValueError(f"{needed}, got {given}")

    @classmethod
    def quick(cls) -> "SpectralControlConfig":
        """A few seconds: smaller matrices, fewer draws and thresholds."""
        return cls(side=64, draws=8, thresholds=(1.0, 2.0, 4.0, 16.0), timed_side=256)


@dataclass(frozen=True, kw_only=True)
class ClipQuality(TypedRow):
    """A clip at one threshold under one noise: medians over the draws."""

    noise: str  # a key of NOISES
    clip: str  # "none" or a key of CLIPS
    threshold: float | None  # None without clipping
    error: float  # relative error of sigma_1
    kept: float  # share of G's top direction (squared cosine) in the leading singular space
    leading: float  # dimension of that space


@dataclass(frozen=True, kw_only=True)
class ClipTime(TypedRow):
    """The median seconds of a clip's call on one square matrix."""

    noise: None = None  # tells these rows from those of ClipQuality
    clip: str
    side: int
    seconds: float


class SpectralMedians(NamedTuple):
    """Medians over the draws, as in ClipQuality."""

    error: float
    kept: float
    leading: float


def run_unit(config: SpectralControlConfig, piece: Piece) -> Iterator[Row]:
    """Yield one row per noise, clip and threshold, and one per clip for its time; `piece` is empty: one unit.

    All clips and thresholds are measured on the same draws of a noise.
    """
    generator = torch.Generator().manual_seed(0)
    G = synthetic_signal(config.side, config.strength, generator)
    norms = bounded_norms(G)
    for name, noise in NOISES.items():
        E = noise.sample((config.draws, *G.shape), generator)
        E *= config.noise * norms["spectral"] / torch.linalg.matrix_norm(E, 2).median()
        yield _quality(name, "none", None, G + E, G)
        for clip, function in CLIPS.items():
            for threshold in config.thresholds:
                yield _quality(name, clip, threshold, function(G + E, threshold * norms[clip]), G)
    yield from _times(config.timed_side, generator)


def bounded_norms(G: Tensor) -> dict[str, float]:
    """The norm of G that each clip bounds, which is the unit of its threshold."""
    entry, frobenius = float(G.square().mean().sqrt()), float(torch.linalg.matrix_norm(G))
    sigma = float(torch.linalg.matrix_norm(G, 2))
    return {"global": frobenius, "hard": entry, "smooth": entry, "spectral": sigma, "soft spectral": sigma}


def _quality(noise: str, clip: str, threshold: float | None, estimate: Tensor, G: Tensor) -> Row:
    found = spectral_medians(estimate, G)
    return ClipQuality(noise=noise, clip=clip, threshold=threshold, **found._asdict()).to_row()


def spectral_medians(estimate: Tensor, G: Tensor) -> SpectralMedians:
    """Compare the leading singular spaces of estimates (draws, m, n) with the top direction of the signal G (m, n)."""
    u, s, vt = torch.linalg.svd(G, full_matrices=False)
    left, values, right = torch.linalg.svd(estimate, full_matrices=False)
    leading = values >= 0.99 * values[..., :1]
    cosines = (left * u[:, :1]).sum(-2), (right * vt[:1]).sum(-1)
    kept = [(each.square() * leading).sum(-1) for each in cosines]
    return SpectralMedians(
        error=float(((values[..., 0] - s[0]) / s[0]).abs().median()),
        kept=float((0.5 * (kept[0] + kept[1])).median()),
        leading=float(leading.sum(-1).double().median()),
    )


def _times(side: int, generator: torch.Generator) -> Iterator[Row]:
    """Time each clip on one matrix, calling them in turn, so that all meet the same load."""
    x = torch.randn(side, side, generator=generator)
    norms = bounded_norms(x)
    seconds: dict[str, list[float]] = {clip: [] for clip in CLIPS}
    for _ in range(5):
        for clip, function in CLIPS.items():
            start = time.perf_counter()
            function(x, norms[clip])
            seconds[clip].append(time.perf_counter() - start)
    for clip, taken in seconds.items():
        yield ClipTime(clip=clip, side=side, seconds=median(taken)).to_row()
