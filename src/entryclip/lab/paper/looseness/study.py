"""Bounds and exact values of a clipped entry's bias and variance over the threshold, and of the rates over alpha."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ....noise import Cauchy, Contamination
from ....theory import Guarantee, guarantee
from ....theory.entry import OPERATOR_BOUNDS, exact
from ...engine.study import Piece, Row
from ..typed_rows import TypedRow


@dataclass(frozen=True)
class LoosenessConfig:
    """The noise, the bound B on the entries of the gradient, and the grids of thresholds and alphas."""

    alpha: float = 0.05
    sigma: float = 1.0
    gamma: float = 1.0
    bound: float = 1.0
    shape: tuple[int, int] = (768, 768)
    points: int = 41
    alphas: tuple[float, ...] = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.85, 1.0)

    def __post_init__(self) -> None:
        Contamination(self.alpha, self.sigma, Cauchy(self.gamma))  # raises where these are no parameters of a noise
        if not 3 <= self.points <= 10_000:
            raise ValueError(f"points must be from 3 to 10^4, got {self.points}")
        if not self.bound > 0:
            raise ValueError(f"bound must be positive, got {self.bound}")
        if not self.alphas:
            raise ValueError("alphas must have at least one value in [0, 1], got none")

    @classmethod
    def quick(cls) -> "LoosenessConfig":
        """A few seconds: coarser grids."""
        return cls(points=15, alphas=(0.0, 0.01, 0.1, 0.3, 1.0))


@dataclass(frozen=True, kw_only=True)
class EntryBounds(TypedRow):
    """An operator's relative bias and variance at one threshold, bounded and exact."""

    kind: str = "entry"
    operator: str
    threshold: float
    rho: float
    exact_rho: float
    variance: float
    exact_variance: float
    post_threshold: float  # the smallest threshold that the theorem on post-clipping allows
    pre_threshold: float  # the same for pre-clipping


@dataclass(frozen=True, kw_only=True)
class RateBounds(TypedRow):
    """The rate of one theorem at one alpha."""

    kind: str = "rate"
    stage: str
    operator: str
    alpha: float
    rate: float
    sharper: float  # the rate with the exact bias and variance

    @property
    def cost(self) -> float:
        """The factor by which the looseness of the bounds worsens the rate."""
        return self.rate / self.sharper


def run_unit(config: LoosenessConfig, piece: Piece) -> Iterator[Row]:
    """Yield rows over the threshold (kind entry) and over alpha (kind rate); `piece` is empty: one unit."""
    for operator in OPERATOR_BOUNDS:
        yield from (entry.to_row() for entry in _entries(config, operator))
    for stage in ("post", "pre"):
        for operator in OPERATOR_BOUNDS:
            for alpha in config.alphas:
                promise = _promise(config, stage, operator, alpha)
                yield RateBounds(
                    stage=stage, operator=operator, alpha=alpha, rate=promise.rate, sharper=promise.sharper_rate
                ).to_row()


def _entries(config: LoosenessConfig, operator: str) -> Iterator[EntryBounds]:
    noise, method = _noise(config, config.alpha), OPERATOR_BOUNDS[operator]
    post, pre = (_promise(config, stage, operator, config.alpha).threshold for stage in ("post", "pre"))
    for threshold in (config.bound * np.geomspace(1.2, 2000, config.points)).tolist():
        rho, variance = exact(operator, threshold, noise, config.bound)
        yield EntryBounds(
            operator=operator,
            threshold=threshold,
            rho=method.rho(threshold, noise, config.bound),
            exact_rho=rho,
            variance=method.variance(threshold, noise),
            exact_variance=variance,
            post_threshold=post,
            pre_threshold=pre,
        )


def _promise(config: LoosenessConfig, stage: str, operator: str, alpha: float) -> Guarantee:
    return guarantee(stage, operator, _noise(config, alpha), bound=config.bound, shape=config.shape, epsilon=0.1)


def _noise(config: LoosenessConfig, alpha: float) -> Contamination:
    return Contamination(alpha, config.sigma, Cauchy(config.gamma))
