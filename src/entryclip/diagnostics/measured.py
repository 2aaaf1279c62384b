"""What the probe found out about one matrix."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from ..noise.fit import Fit, Interval, fit
from ..quantiles.histogram import Histogram
from .directions import Directions
from .localization import Localization, from_projections
from .recommend import Recommendation, recommend
from .slices import Matrix
from .spectrum import Correlation, rank_correlation
from .stream import Spike, Stream
from .tails import TailIndex, tail_of_largest

_DRAWS = 2000  # of the null of a captured direction: its median to 3 %


@dataclass(frozen=True)
class MatrixNoise:
    """The noise of one matrix. What could not be measured is None, and `notes` says why."""

    name: str
    shape: tuple[int, int]
    samples: int  # whose noise was looked at
    localization: Localization | None  # R-hat by medians of means and two halves
    plain: Localization | None  # R-hat as the paper has it: the plain mean of all samples, and single ones less that
    tail: TailIndex | None
    correlation: Correlation | None  # Spearman's, of max |E| and sigma_1(E)
    relative: Correlation | None  # of both in units of the sample's scale: samples that differ in size correlate too
    scale: Interval  # median of |E_ij| / 0.6745: its median over the samples, and the lowest and highest tenth
    marginal: tuple[np.ndarray, np.ndarray, np.ndarray]  # |E_ij| in units of the sample's scale: bins from, to, counts
    fit: Fit | None  # of the noise in those units
    balance: Interval | None  # far entries with the sign of G less those against it, from -1 to 1; 0: symmetric
    premise: float | None  # the share of samples with ||E|| < gap / 4, the premise of thm:taylor
    spikes: tuple[Spike, ...]  # the entries that detached a singular value, the largest share first
    noise_scale: float | None  # tr(Cov) / |G|^2, the batch at which noise and signal are even; None: no signal seen
    recommendation: Recommendation
    notes: tuple[str, ...] = ()

    @property
    def spiked(self) -> float:
        """The share of samples in which one entry carries more than half of sigma_1."""
        return len(self.spikes) / max(self.samples, 1)

    def row(self) -> dict[str, Any]:
        """As a plain row, for JSON."""
        found: dict[str, Any] = {"matrix": self.name, "rows": self.shape[0], "columns": self.shape[1]}
        found |= {"samples": self.samples, **_ratios(self.localization, ""), **_ratios(self.plain, "plain_")}
        tail, rho = self.tail, self.correlation
        found |= {"tail": tail and tail.verdict, "index": tail and tail.index}
        found |= {"index_low": tail and tail.interval[0], "index_high": tail and tail.interval[1]}
        found |= {"spearman": rho and rho.rho, "spearman_low": rho and rho.interval[0]}
        found |= {"spearman_high": rho and rho.interval[1], "spiked": self.spiked, "premise": self.premise}
        found |= {"relative": self.relative and self.relative.rho}
        found |= {"scale": self.scale.value, "scale_low": self.scale.low, "scale_high": self.scale.high}
        found |= {"sigma": self.fit and self.fit.sigma.value * self.scale.value}
        found |= {"alpha_gamma": self.fit and self.fit.alpha_gamma.value * self.scale.value}
        found |= {"balance": self.balance and self.balance.value, "noise_scale": self.noise_scale}
        found |= {"spikes": [list(spike) for spike in self.spikes]}
        advice = self.recommendation
        found |= {"verdict": advice.verdict, "sure": advice.sure, "clip": advice.clip and str(advice.clip)}
        found |= {"stage": advice.stage, "quantile": advice.quantile, "threshold": advice.threshold}
        found |= {"theory": advice.theory, "gain": advice.gain, "reason": advice.reason, "notes": list(self.notes)}
        return {key: _finite(value) for key, value in found.items()}


def measure(
    matrix: Matrix, stream: Stream, ours: Directions, plain: Directions, *, bound: float, signal: float
) -> MatrixNoise:
    """Everything, from the numbers of all samples. `signal`: |G|^2, from both halves; `bound`: max |G_ij|."""
    notes: list[str] = []
    histogram = stream.histogram or Histogram.of(np.zeros(0))
    localized = _localization(stream.terms, ours, notes)
    tail = _try(lambda: tail_of_largest(*stream.top()), notes)
    fitted = _try(lambda: fit(histogram), notes)
    scale = Interval(*np.quantile(stream.scale, [0.5, 0.1, 0.9]))
    advice = recommend(
        stream.spikes,
        len(stream.samples),
        histogram,
        scale=scale.value,
        localized=localized,
        tail=tail,
        fit=fitted,
        bound=bound,
        rank=min(matrix.shape),
    )
    if stream.silent:
        notes.append(f"{stream.silent} samples have no noise here and are left out")
    trace = float(np.mean(stream.square)) * len(stream.square) / max(len(stream.square) - 1, 1)
    return MatrixNoise(
        name=matrix.name,
        shape=matrix.shape,
        samples=len(stream.samples),
        localization=localized,
        plain=_localization(stream.plain_terms, plain, []),
        tail=tail,
        correlation=_try(lambda: rank_correlation(*stream.extremes()), notes),
        relative=_try(lambda: rank_correlation(*(stream.extremes() / np.array(stream.scale))), []),
        scale=scale,
        marginal=histogram.occupied(),
        fit=fitted,
        balance=_mean(stream.balance),
        premise=float(np.mean(np.array(stream.sigma) < ours.gap[0] / 4)) if len(ours.s) else None,
        spikes=tuple(sorted(stream.spikes, key=lambda spike: -spike.share)),
        noise_scale=trace / signal if signal > 0 else None,
        recommendation=advice,
        notes=tuple(notes),
    )


def unmeasured(matrix: Matrix, reason: str) -> MatrixNoise:
    """A matrix about which nothing can be said."""
    return MatrixNoise(
        name=matrix.name,
        shape=matrix.shape,
        samples=0,
        localization=None,
        plain=None,
        tail=None,
        correlation=None,
        relative=None,
        scale=Interval(0.0, 0.0, 0.0),
        marginal=(np.zeros(0), np.zeros(0), np.zeros(0, np.int64)),
        fit=None,
        balance=None,
        premise=None,
        spikes=(),
        noise_scale=None,
        recommendation=Recommendation("nothing to see", "sure", reason),
        notes=(reason,),
    )


def _localization(terms: list[np.ndarray], along: Directions, notes: list[str]) -> Localization | None:
    """Of the samples that have something along every direction."""
    if not len(along.s):
        notes.append("the median of the block means is zero, or has no direction of its own: no localization ratio")
        return None
    stacked = np.array(terms).reshape(-1, 2, len(along.s))
    stacked = stacked[(stacked[:, 1] > 0).all(-1)]
    if len(stacked) < 5:
        notes.append(f"{len(stacked)} samples have noise where the signal has its directions: no localization ratio")
        return None
    ks = range(1, len(along.s) + 1)
    return from_projections(ks, stacked[:, 0], stacked[:, 1], along.u, along.v, draws=_DRAWS)


def _try(make: Any, notes: list[str]) -> Any:
    """What `make` gives, or None with a note of why not."""
    try:
        return make()
    except ValueError as error:
        notes.append(str(error))
        return None


def _mean(values: list[float]) -> Interval | None:
    if len(values) < 5:
        return None
    centre, half = float(np.mean(values)), float(stats.sem(values) * stats.t.ppf(0.975, len(values) - 1))
    return Interval(centre, centre - half, centre + half)


def _ratios(found: Localization | None, prefix: str) -> dict[str, Any]:
    if found is None:
        return {f"{prefix}{key}": None for key in ("r_hat", "low", "high", "p", "spread_u", "spread_v")}
    low, high = found.band().T
    spread = found.participation.T
    columns = {"r_hat": found.median, "low": low, "high": high, "p": found.p_median()}
    columns |= {"spread_u": spread[0], "spread_v": spread[1]}
    return {f"{prefix}{key}": column.tolist() for key, column in columns.items()}


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: None."""
    if isinstance(value, list):
        return [_finite(each) for each in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value
