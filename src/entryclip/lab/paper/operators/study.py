"""Outputs and damping factors of hard clipping, smooth shrinkage and soft thresholding on a grid of entries."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ....operators import hard_clip, smooth_shrinkage, soft_threshold
from ...engine.study import Piece, Row
from ..typed_rows import TypedRow


@dataclass(frozen=True)
class OperatorsConfig:
    """The threshold and the grid of entries."""

    tau: float = 1.0  # the common threshold
    reach: float = 6.0  # the largest entry, in units of tau
    points: int = 601

    def __post_init__(self) -> None:
        if not (0 < self.tau < math.inf and 1 < self.reach < math.inf):
            raise ValueError(f"tau must be positive, reach above 1, both finite, got {self.tau} and {self.reach}")
        if not 7 <= self.points <= 10**6:
            raise ValueError(f"points must be from 7 to 10^6, got {self.points}")

    @classmethod
    def quick(cls) -> "OperatorsConfig":
        """The full config, which takes no time."""
        return cls()


@dataclass(frozen=True, kw_only=True)
class OperatorPoint(TypedRow):
    """One operator at one entry `x`."""

    operator: str
    threshold: float
    x: float
    output: float
    factor: float  # output / x, or its limit at 0


def run_unit(config: OperatorsConfig, piece: Piece) -> Iterator[Row]:
    """Yield one row per operator, threshold and entry; the study is one unit, so `piece` is empty."""
    x = np.linspace(0, config.reach * config.tau, config.points)
    x[np.abs(x - config.tau).argmin()] = config.tau  # the tangent point itself
    curves = [(operator, config.tau) for operator in (hard_clip, smooth_shrinkage, soft_threshold)]
    curves.append((hard_clip, config.tau / math.e))  # the tangent calibration
    for operator, threshold in curves:
        output = operator(x, threshold)
        slope = operator(np.array([1e-9 * threshold]), threshold)[0] / (1e-9 * threshold)  # the factor's limit at 0
        factor = np.divide(output, x, out=np.full_like(x, slope), where=x > 0)
        for point, value, damping in zip(x.tolist(), output.tolist(), factor.tolist(), strict=True):
            name = operator.__name__
            yield OperatorPoint(operator=name, threshold=threshold, x=point, output=value, factor=damping).to_row()
