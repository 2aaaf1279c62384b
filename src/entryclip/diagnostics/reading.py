"""What the monitor measures of one matrix at one step: the largest entry of its noise, and what the noise is.

All of it is measured twice: raw, of the noise as it is, and standardised, over the scales of its rows and columns.
"""

import math
from typing import Any, NamedTuple

from torch import Tensor

from ..auto_threshold import ENOUGH, TIE
from ..efficiency import best_threshold, sketch
from ..log_scales import NARROW
from ..operators import hard_clip, smooth_shrinkage
from ..quantiles.quantile import quantile_abs
from .matrices import NamedMatrix
from .probe.standardized import DOMINANT, DetectedSpike, dominant_entry, is_spike, largest_entry
from .probe.structure import ANOMALOUS_GAIN, NoiseStructure
from .variance_components import variance_components


class Reading(NamedTuple):
    """The noise of one matrix at one step: its largest entries, raw and standardised, with their share of sigma_1."""

    step: int
    name: str
    sigma: float  # the largest singular value of the noise
    share: float  # the share of sigma that the largest entry carries
    row: int
    column: int
    size: float  # the size of that entry in scales, the median of the non-zero |E_ij| over 0.6745
    standardized: DetectedSpike | None = None  # the largest entry of the noise over the scales of its rows and columns
    batch: Any = None  # what `Monitor.step` was told of the batch
    place: tuple[int, ...] = ()  # the index in the parameter of the entry `standardized`
    structure: NoiseStructure = NoiseStructure.NEITHER  # anomalous entries, rows and columns, or neither
    gain: float | None = None  # of the best clip of the standardised noise, as in the probe; None for a small matrix
    raw_gain: float | None = None  # of the best clip of the noise as it is

    @property
    def spiked(self) -> bool:
        """Whether one entry carries more than half of sigma_1 of the standardised noise: an anomalous entry."""
        carries = self.standardized is not None and self.standardized.share > DOMINANT
        return carries and self.structure is NoiseStructure.ENTRIES  # not so in a narrow matrix of Gaussian entries

    @property
    def raw_spiked(self) -> bool:
        """Whether one entry carries more than half of sigma_1 of the noise as it is, with the scales in it."""
        return self.share > DOMINANT

    def __str__(self) -> str:
        own = self.standardized or DetectedSpike(self.step, self.row, self.column, math.nan, math.nan)
        batch = "" if self.batch is None else f"batch {self.batch}, "
        plain = self.place in ((), (own.row, own.column))
        index = "" if plain else f" (index {', '.join(map(str, self.place))} of the parameter)"
        elsewhere = (
            "" if (self.row, self.column) == (own.row, own.column) else f" at row {self.row} column {self.column}"
        )
        return (
            f"step {self.step}, {batch}{self.name}, row {own.row} column {own.column}{index}: {self.structure}; "
            f"standardised {own.share:.0%} of sigma_1, {own.size:.3g} scales; "
            f"raw {self.share:.0%}, {self.size:.3g} scales{elsewhere}"
        )


def take_reading(
    step: int, matrix: NamedMatrix, noise: Tensor, standardized: Tensor, batch: Any, shape: tuple[int, ...]
) -> Reading | None:
    """Measure the noise of one matrix, (m, n), of a parameter of this shape; None where it is zero.

    standardized    the noise over the scales of its rows and columns, (m, n)
    """
    top = noise.abs().amax()
    if float(top) == 0:
        return None
    unit = noise / top
    (raw, sigma), (own, _) = largest_entry(step, unit), largest_entry(step, standardized)
    scale = float(quantile_abs(unit, 0.5, nonzero=True)) / 0.6745
    gain, raw_gain = _gain(standardized), _gain(unit)
    anomalous = is_spike(own, noise.shape) or _is_anomalous(gain)
    structure = NoiseStructure.of(anomalous=anomalous, uneven=not anomalous and variance_components(unit).uneven)
    place = matrix.place((own.row, own.column), shape)
    size = 1 / scale
    return Reading(
        *(step, matrix.name, sigma * float(top), raw.share, raw.row, raw.column, size, own, batch, place),
        structure=structure,
        gain=gain,
        raw_gain=raw_gain,
    )


def looks_anomalous(standardized: Tensor) -> bool:
    """Return whether a matrix of noise, over the scales of its rows and columns, has anomalous entries."""
    found = dominant_entry(0, standardized)
    return (found is not None and is_spike(found, standardized.shape)) or _is_anomalous(_gain(standardized))


def _is_anomalous(gain: float | None) -> bool:
    return gain is not None and gain > ANOMALOUS_GAIN


def _gain(standardized: Tensor) -> float | None:
    """Return how much the best clip gains in one sample, (m, n); None where too few entries would make it chance."""
    if min(standardized.shape) < NARROW or standardized.numel() < ENOUGH:
        return None
    counts = sketch(standardized)
    return max(float(best_threshold(counts, operator, TIE).gain) for operator in (hard_clip, smooth_shrinkage))
