"""From the accumulated statistics of one matrix's noise to the probe's result for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy import stats
from torch import Tensor

from ...arrays import to_numpy
from ...noise.fit import Interval, fit
from ..directions import Directions, leading_directions
from ..localization import Localization, from_projections
from ..matrices import NamedMatrix
from ..pooled_scales import Pair
from ..spectrum import rank_correlation
from ..tails import tail_of_largest
from ..variance_components import mean_components
from .efficiency import best_clip
from .matrix_noise import MatrixNoise, StandardizedNoise
from .noise_statistics import NoiseStatistics
from .recommendation import recommend
from .standardized import DetectedSpike

TOLERANCE = 1e-6  # residual of the directions: far below the error of the signal itself
_DRAWS = 2000  # Monte Carlo draws of the null where a direction is captured by few entries: its median to 3 %
_LEAST = 5  # samples that a median or an interval needs

T = TypeVar("T")


@dataclass(frozen=True)
class Signal:
    """The signal G of one matrix, by the median of block means over the first half of the samples."""

    directions: Directions
    bound: float  # max |G_ij|

    @classmethod
    def of(cls, g: Tensor, count: int) -> "Signal":
        """Compute up to `count` leading directions of `g`, (m, n)."""
        return cls(leading_directions(g, count, TOLERANCE), float(g.abs().amax()))


def estimate_noise(
    matrix: NamedMatrix, statistics: NoiseStatistics, signal: Signal, plain_directions: Directions, *, strength: float
) -> MatrixNoise:
    """Estimate everything the probe reports about one matrix.

    plain_directions    those of the plain mean of all samples
    strength            an estimate of |G|^2 from two independent halves of the samples; it may be negative
    """
    notes: list[str] = []
    histogram = statistics.marginal.histogram
    scale = Interval(*np.quantile(statistics.scale, [0.5, 0.1, 0.9]))
    standardized = _standardized(statistics, signal.directions)
    advice = recommend(
        standardized.spikes,
        len(statistics.samples),
        statistics.standardized.marginal.histogram,
        raw_spikes=len(statistics.spikes),
        uneven=standardized.uneven,
        scale=scale.value,
        localized=standardized.localization,
        tail=standardized.tail,
        fit=standardized.fit if standardized.spikes else None,  # it takes a while
        bound=signal.bound,
        rank=min(matrix.shape),
    )
    if statistics.silent:
        notes.append(f"{statistics.silent} samples have no noise here and are left out")
    return MatrixNoise(
        name=matrix.name,
        shape=matrix.shape,
        samples=len(statistics.samples),
        localization=_localization(statistics.projections, signal.directions, notes),
        plain=_localization(statistics.plain_projections, plain_directions, []),
        tail=_or_note(lambda: tail_of_largest(*statistics.marginal.largest_entries()), notes),
        correlation=_or_note(lambda: rank_correlation(*statistics.extremes()), notes),
        relative=_or_note(lambda: rank_correlation(*(statistics.extremes() / np.array(statistics.scale))), []),
        scale=scale,
        marginal=histogram.occupied(),
        fit=_or_note(lambda: fit(histogram), notes),
        balance=_mean(statistics.balance),
        premise=_premise(statistics.sigma, signal.directions),
        spikes=_by_share(statistics.spikes),
        gain=_or_note(lambda: best_clip(histogram), []),
        standardized=standardized,
        noise_scale=_trace(statistics.square) / strength if strength > 0 else None,
        recommendation=advice,
        notes=tuple(notes),
    )


def _standardized(statistics: NoiseStatistics, directions: Directions) -> StandardizedNoise:
    """Estimate what is reported of the noise over the scales of its rows and columns."""
    found = statistics.standardized
    histogram, rows, columns = (
        found.marginal.histogram,
        *(to_numpy(x) for x in (found.pooled.rows, found.pooled.columns)),
    )
    scales = found.pooled.shrunk(histogram)
    return StandardizedNoise(
        rows=rows,
        columns=columns,
        variance=found.pooled.log_variances(histogram),
        in_samples=mean_components(found.components),
        localization=_localization(statistics.projections, directions, [], scales),
        tail=_or_note(lambda: tail_of_largest(*found.marginal.largest_entries()), []),
        histogram=histogram,
        gain=_or_note(lambda: best_clip(histogram), []),
        spikes=_by_share(found.spikes),
    )


def _by_share(spikes: Sequence[DetectedSpike]) -> tuple[DetectedSpike, ...]:
    return tuple(sorted(spikes, key=lambda spike: -spike.share))


def _localization(
    projections: list[np.ndarray], directions: Directions, notes: list[str], scales: Pair | None = None
) -> Localization | None:
    """Return the localization of the samples that have noise along every direction; None, and a note, if too few."""
    if not len(directions.s):
        notes.append("the median of the block means is zero, or has no direction of its own: no localization ratio")
        return None
    stacked = np.array(projections).reshape(-1, 2, len(directions.s))
    stacked = stacked[(stacked[:, 1] > 0).all(-1)]
    if len(stacked) < _LEAST:
        notes.append(f"{len(stacked)} samples have noise where the signal has its directions: no localization ratio")
        return None
    ks = range(1, len(directions.s) + 1)
    return from_projections(ks, stacked[:, 0], stacked[:, 1], directions.u, directions.v, scales=scales, draws=_DRAWS)


def _or_note(estimate: Callable[[], T], notes: list[str]) -> T | None:
    """Return the estimate, or None and a note of the reason where the data do not allow one."""
    try:
        return estimate()
    except ValueError as error:
        notes.append(str(error))
        return None


def _premise(norms: list[float], directions: Directions) -> float | None:
    """Return the share of samples with ||E|| < gap / 4, or None where the signal determines no direction."""
    return float(np.mean(np.array(norms) < directions.gap[0] / 4)) if len(directions.s) else None


def _trace(squares: list[float]) -> float:
    """Return an estimate of tr(Cov) from ||E||_F^2 of samples around their own center."""
    return float(np.mean(squares)) * len(squares) / max(len(squares) - 1, 1)


def _mean(values: list[float]) -> Interval | None:
    """Return the mean with its 95 % interval by Student's t; None for fewer than five values."""
    if len(values) < _LEAST:
        return None
    center, half = float(np.mean(values)), float(stats.sem(values) * stats.t.ppf(0.975, len(values) - 1))
    return Interval(center, center - half, center + half)
