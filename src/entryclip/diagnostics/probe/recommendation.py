"""Advice from the measured noise of one matrix: which clip, where, at which quantile and how sure; or none.

Entry-wise clipping controls a spectrum that single entries drive. So the criterion is in how many samples one entry
carries more than half of sigma_1 of the noise: a spike. In Gaussian noise that does not happen, nor in low-rank,
aligned or multiplicative noise. R-hat alone would not do: noise aligned with the first direction of G has R-hat far
*above* 1 along the others, where its projection cancels and its largest term does not.

All of it is asked of the standardised noise, with the scales of rows and columns divided out. Where a large row crosses
a large column, an entry of ordinary noise may carry sigma_1, and a clip would damp that row and column, not an anomaly.

A clip at a quantile of |x| acts on the entries as they are. It is advised where rows and columns are even. Where they
differ, its one threshold would touch ordinary entries of large rows and miss anomalous ones of small rows, so that the
advice is `auto()`, which divides the entries by scales of its own.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from scipy import stats

from ...clip import Clip, auto, hard, smooth
from ...log_scales import NARROW
from ...noise import Cauchy, Contamination
from ...noise.fit import Fit
from ...quantiles.histogram import Histogram
from ...theory.entry import threshold_hard, threshold_smooth
from ..localization import Localization
from ..tails import TailIndex, TailVerdict
from .efficiency import ClipEfficiency, best_clip
from .standardized import DetectedSpike
from .structure import ANOMALOUS_GAIN, NoiseStructure

_OFTEN = 0.1  # the share of samples above which, with 95 % confidence, spikes are no accident
_SURE = 0.01  # p-value of R-hat along the first direction
_UNEVEN = (
    "rows and columns differ in scale, so that one threshold for all entries would touch ordinary ones in large rows "
    "and miss anomalous ones in small rows: auto() divides by the scales first"
)
_GUARDED = "with a side of {rank} it bounds the very largest entries and does no more"


class Verdict(StrEnum):
    """What the probe found in one matrix."""

    SPIKES = "spikes"  # in more than 10 % of the samples, with 95 % confidence: clipping is advised
    RARE_SPIKES = "rare spikes"  # too few to be sure
    ONE_ENTRY = "one entry"  # mostly the same one: it belongs to the signal, and a clip would remove it
    NO_SPIKES = "no spikes"
    NOTHING = "nothing to see"  # no gradient, or too few samples with one


class Confidence(StrEnum):
    """How sure a verdict is."""

    SURE = "sure"
    LIKELY = "likely"
    UNSURE = "unsure"


class ClipStage(StrEnum):
    """Where to clip."""

    MICROBATCH = "microbatch"  # each microbatch before the mean over them: `optim.ClippedMean`
    PRE = "pre"  # the averaged gradient: Muon's `pre`, AdamW's `grad` or the paper's `post`


@dataclass(frozen=True)
class Recommendation:
    """The advice for one matrix; `print` it for a sentence. Fields that do not apply are None."""

    verdict: Verdict
    sure: Confidence
    reason: str
    structure: NoiseStructure | None = None  # None where nothing was measured
    clip: Clip | None = None
    stage: ClipStage | None = None
    quantile: float | None = None
    threshold: float | None = None  # that quantile of one sample's noise, in the gradient's unit
    theory: float | None = None  # the smallest threshold of the theorems for the fitted noise, in the gradient's unit
    gain: float | None = None  # of the best clip of the standardised noise: as if the batch were so many times larger

    @property
    def clips(self) -> bool:
        """Whether clipping is advised, and not only offered as a precaution."""
        return self.verdict == Verdict.SPIKES

    def __str__(self) -> str:
        advice = "no clipping needed" if self.clip is None else f"{self.clip} at stage {self.stage}"
        structure = "" if self.structure is None else f"{self.structure.sentence}; "
        return f"{advice} ({self.sure}): {structure}{self.reason}"


def recommend(
    spikes: Sequence[DetectedSpike],
    samples: int,
    histogram: Histogram,
    *,
    raw_spikes: int,
    uneven: bool,
    scale: float,
    localized: Localization | None,
    tail: TailIndex | None,
    fit: Fit | None,
    bound: float,
    rank: int,
) -> Recommendation:
    """Give advice from the standardised noise of `samples` gradients of one matrix.

    spikes      those detected in the standardised noise, at most one per sample
    histogram   of the standardised noise
    raw_spikes  the number of samples with a spike in the noise as it is
    uneven      whether rows and columns differ in scale
    scale       of the noise, in the gradient's unit
    localized   the localization ratios, for confidence
    tail        the tail of the standardised noise, for the stage
    fit         of the standardised noise, for the theorems' threshold
    bound       the largest entry of the signal, in the gradient's unit
    rank        the shorter side of the matrix
    """
    share = f"one entry carries more than half of sigma_1 in {len(spikes)} of {samples} samples"
    best = best_clip(histogram)
    structure = NoiseStructure.of(anomalous=bool(spikes) or best.factor > ANOMALOUS_GAIN, uneven=uneven)
    if not spikes:
        share = share.replace(" 0 of", " none of")
        share += f", and in {raw_spikes} where rows and columns keep their scales" if raw_spikes else ""
        share += f"; but {_many(best.factor)}" if structure is NoiseStructure.ENTRIES else ""
        return Recommendation(Verdict.NO_SPIKES, _confidence_of_none(samples), share, structure)
    where = Counter((spike.row, spike.column) for spike in spikes)
    place, times = where.most_common(1)[0]
    if times > 2 and times > len(spikes) / 2:
        same = f"{share}, in {times} of them the same one, row {place[0]} column {place[1]}"
        reason = f"{same}: it belongs to the gradient, a clip would take it away"
        return Recommendation(Verdict.ONE_ENTRY, Confidence.LIKELY, reason, structure)
    sure, stage = _confidence(len(spikes), samples, localized), _stage(tail)
    verdict = Verdict.RARE_SPIKES if sure == Confidence.UNSURE else Verdict.SPIKES
    reason = f"{share}; {_stage_reason(stage, tail)}"
    if uneven:
        guarded = 1 < rank < NARROW
        reason = f"{reason}; {_UNEVEN}" + (f"; {_GUARDED.format(rank=rank)}" if guarded else "")
        gain = None if guarded else best.factor
        return Recommendation(verdict, sure, reason, structure, auto(), stage, gain=gain)
    return Recommendation(
        verdict,
        sure,
        reason,
        structure,
        _CLIPS[best.operator](best.quantile),
        stage,
        best.quantile,
        best.threshold * scale,
        _theory(best, fit, scale, bound, rank),
        best.factor,
    )


def _many(gain: float) -> str:
    """Say what it means that a clip would gain much though no entry dominates."""
    return f"many entries are too large for Gaussian ones; a clip would be worth {gain:.3g} times the batch: try auto()"


def _confidence(spikes: int, samples: int, localized: Localization | None) -> Confidence:
    """Return unsure where spikes may be in fewer than 10 % of all samples, sure where R-hat confirms them."""
    if stats.beta.ppf(0.05, spikes, samples - spikes + 1) < _OFTEN:  # Clopper and Pearson's lower end
        return Confidence.UNSURE
    if localized is None or not localized.median[0] > 1 or localized.p_median()[0] > _SURE:
        return Confidence.LIKELY
    return Confidence.SURE


def _confidence_of_none(samples: int) -> Confidence:
    """Return how sure it is that there are no spikes: with none in n samples, their share is below 1 - 0.05^(1/n)."""
    if 1 - 0.05 ** (1 / samples) < _OFTEN:
        return Confidence.SURE
    return Confidence.LIKELY if samples >= 10 else Confidence.UNSURE


def _stage(tail: TailIndex | None) -> ClipStage:
    heavy = tail is not None and tail.verdict == TailVerdict.POWER_LAW and tail.index < 2
    return ClipStage.MICROBATCH if heavy else ClipStage.PRE


def _stage_reason(stage: ClipStage, tail: TailIndex | None) -> str:
    if stage == ClipStage.MICROBATCH and tail is not None:
        return f"with tail index {tail.index:.2g} < 2 a mean over the batch lets them through"
    return "a mean over the batch dampens them, so a clip of what it leaves is enough"


def _theory(best: ClipEfficiency, fit: Fit | None, scale: float, bound: float, rank: int) -> float | None:
    """Return the threshold of lem:pre-thresholds-app in the gradient's unit; None for noise outside its model."""
    if fit is None or not isinstance(fit.noise, Contamination) or not isinstance(fit.noise.heavy, Cauchy):
        return None
    noise = fit.noise
    rescaled = Contamination(noise.alpha, noise.sigma * scale, Cauchy(noise.heavy.gamma * scale))  # type: ignore[union-attr]
    least = threshold_hard if best.operator == "hard" else threshold_smooth
    found = least(rescaled, bound, 0.25 / math.sqrt(rank))
    return float(found) if math.isfinite(found) else None


_CLIPS = {"hard": hard, "smooth": smooth}
