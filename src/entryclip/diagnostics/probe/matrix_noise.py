"""The result of the probe for one matrix."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ...noise.fit import Fit, Interval, fit
from ...quantiles.histogram import Histogram
from ..localization import Localization
from ..spectrum import Correlation
from ..tails import TailIndex
from ..variance_components import UNEVEN, VarianceComponents
from .efficiency import ClipEfficiency
from .recommendation import Confidence, Recommendation, Verdict
from .standardized import DetectedSpike

Row = dict[str, Any]  # one line of JSON: numbers, strings, None and lists of them


@dataclass(frozen=True)
class StandardizedNoise:
    """The noise of one matrix over the scales of its rows and columns: what the verdict and the advice rest on."""

    rows: np.ndarray = field(repr=False)  # scales, (m,): the mean over the samples, with geometric mean 1 in each
    columns: np.ndarray = field(repr=False)  # (n,)
    variance: tuple[float, float, float]  # of log rows, log columns and log|z|, z the standardised entries
    in_samples: VarianceComponents  # of log|E| of single samples, whose scales may change: the mean over the samples
    localization: Localization | None  # the same ratios R, against Gaussian noise with these scales
    tail: TailIndex | None
    histogram: Histogram = field(repr=False)  # of z, over all samples
    gain: ClipEfficiency | None  # of the best entry-wise clip: 1 means that none helps
    spikes: tuple[DetectedSpike, ...]  # by the largest share of sigma_1 of the standardised noise first

    @property
    def marginal(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The distribution of |z|: bins from, to, counts."""
        return self.histogram.occupied()

    @cached_property
    def fit(self) -> Fit | None:
        """The noise model fitted to z; None where there are too few entries."""
        try:
            return fit(self.histogram)
        except ValueError:
            return None

    @property
    def uneven(self) -> bool:
        """Whether rows and columns differ in scale, on average or in single samples.

        They do where the standard deviation of log(row * column) is above .25.
        """
        return self.variance[0] + self.variance[1] > UNEVEN**2 or self.in_samples.uneven


@dataclass(frozen=True)
class MatrixNoise:
    """The gradient noise E of one matrix. A field that could not be measured is None, and `notes` says why.

    `standardized` has the same with the scales of rows and columns divided out.
    """

    name: str
    shape: tuple[int, int]
    samples: int  # samples whose noise was measured
    localization: Localization | None  # R-hat by medians of means, against Gaussian noise of one variance
    plain: Localization | None  # R-hat by the paper's estimator: the plain mean of all samples, and samples less that
    tail: TailIndex | None
    correlation: Correlation | None  # Spearman's, of max |E_ij| and sigma_1(E)
    relative: Correlation | None  # the same in units of each sample's scale: samples that differ in size correlate too
    scale: Interval  # median |E_ij| / 0.6745 of a sample: its median over the samples, lowest and highest tenth
    marginal: tuple[np.ndarray, np.ndarray, np.ndarray]  # |E_ij| in units of the sample's scale: bins from, to, counts
    fit: Fit | None  # the noise model fitted to E in those units
    balance: Interval | None  # share of tail entries with the sign of G less share against it; 0: symmetric noise
    premise: float | None  # the share of samples with ||E|| < gap / 4, the premise of thm:taylor
    spikes: tuple[DetectedSpike, ...]  # the largest share of sigma_1 first
    gain: ClipEfficiency | None  # the efficiency of the best entry-wise clip on E as it is
    standardized: StandardizedNoise | None
    noise_scale: float | None  # tr(Cov) / |G|^2, the batch size at which noise and signal are even; None: no signal
    recommendation: Recommendation
    notes: tuple[str, ...] = ()

    @property
    def spiked(self) -> float:
        """The share of samples in which one entry carries more than half of sigma_1."""
        return len(self.spikes) / max(self.samples, 1)

    def row(self) -> Row:
        """Return the numbers as a plain row for JSON, with None for NaN and infinity."""
        found: Row = {"matrix": self.name, "rows": self.shape[0], "columns": self.shape[1]}
        found |= {"samples": self.samples, **_ratios(self.localization, ""), **_ratios(self.plain, "plain_")}
        tail, rho = self.tail, self.correlation
        found |= {"tail": tail and str(tail.verdict), "index": tail and tail.index}
        found |= {"index_low": tail and tail.interval[0], "index_high": tail and tail.interval[1]}
        found |= {"spearman": rho and rho.rho, "spearman_low": rho and rho.interval[0]}
        found |= {"spearman_high": rho and rho.interval[1], "spiked": self.spiked, "premise": self.premise}
        found |= {"relative": self.relative and self.relative.rho}
        found |= {"scale": self.scale.value, "scale_low": self.scale.low, "scale_high": self.scale.high}
        found |= {"sigma": self.fit and self.fit.sigma.value * self.scale.value}
        found |= {"contaminated": self.fit and self.fit.contaminated, "deviance": self.fit and self.fit.deviance}
        found |= {"alpha_gamma": self.fit and self.fit.alpha_gamma.value * self.scale.value}
        found |= {"alpha_gamma_in_scales": self.fit and self.fit.alpha_gamma.value}
        found |= {"balance": self.balance and self.balance.value, "noise_scale": self.noise_scale}
        found |= {"spikes": [list(spike) for spike in self.spikes], "raw_gain": self.gain and self.gain.factor}
        found |= _standardized(self.standardized, self.samples)
        found |= {**_advice(self.recommendation), "notes": list(self.notes)}
        return {key: _json(value) for key, value in found.items()}


def unmeasured(name: str, shape: tuple[int, int], reason: str) -> MatrixNoise:
    """Return the result for a matrix about which nothing can be said, with the reason as its note."""
    return MatrixNoise(
        name=name,
        shape=shape,
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
        gain=None,
        standardized=None,
        noise_scale=None,
        recommendation=Recommendation(Verdict.NOTHING, Confidence.SURE, reason),
        notes=(reason,),
    )


def _ratios(found: Localization | None, prefix: str) -> Row:
    """Return the columns of a localization, each a list over the directions."""
    if found is None:
        return {f"{prefix}{key}": None for key in ("r_hat", "low", "high", "p", "spread_u", "spread_v")}
    low, high = found.band().T
    spread = found.participation.T
    columns = {"r_hat": found.median, "low": low, "high": high, "p": found.p_median()}
    columns |= {"spread_u": spread[0], "spread_v": spread[1]}
    return {f"{prefix}{key}": column.tolist() for key, column in columns.items()}


def _standardized(found: StandardizedNoise | None, samples: int) -> Row:
    """Return the columns of the noise without its scales; rows of earlier versions do not have them."""
    rows, columns, rest = found.variance if found else (None, None, None)
    tail, fitted = (found.tail, found.fit) if found else (None, None)
    row: Row = {"log_rows": rows, "log_columns": columns, "log_rest": rest}
    row |= {f"log_{part}_in_samples": found and getattr(found.in_samples, part) for part in ("rows", "columns", "rest")}
    row |= _ratios(found.localization if found else None, "standardized_")
    row |= {"standardized_tail": tail and str(tail.verdict), "standardized_index": tail and tail.index}
    row |= {"standardized_index_low": tail and tail.interval[0], "standardized_index_high": tail and tail.interval[1]}
    row |= {"standardized_sigma": fitted and fitted.sigma.value}  # in scales, as is the next
    row |= {"standardized_alpha_gamma": fitted and fitted.alpha_gamma.value}
    row |= {"standardized_contaminated": fitted and fitted.contaminated}
    row |= {"standardized_deviance": fitted and fitted.deviance}
    row |= {"standardized_gain": found and found.gain and found.gain.factor}
    row |= {"standardized_spiked": len(found.spikes) / max(samples, 1) if found else None}
    return row | {"standardized_spikes": [list(spike) for spike in found.spikes] if found else []}


def _advice(advice: Recommendation) -> Row:
    return {
        "structure": advice.structure and str(advice.structure),
        "verdict": str(advice.verdict),
        "sure": str(advice.sure),
        "clip": advice.clip and str(advice.clip),
        "stage": advice.stage and str(advice.stage),
        "quantile": advice.quantile,
        "threshold": advice.threshold,
        "theory": advice.theory,
        "gain": advice.gain,
        "reason": advice.reason,
    }


def _json(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by None."""
    if isinstance(value, list):
        return [_json(each) for each in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value
