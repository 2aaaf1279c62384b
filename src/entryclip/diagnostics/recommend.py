"""From what was measured to advice: which clip, where, at which quantile, how sure; or none.

Entry-wise clipping controls a spectrum that single entries drive. So the question is in how many samples one entry
carries more than half of sigma_1 of the noise. In Gaussian noise that does not happen, nor in low-rank, aligned or
multiplicative noise. R-hat alone would not do: noise aligned with the first direction of G has R-hat far *above* 1
along the others, where its projection cancels and its largest term does not.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

from ..clip import Clip, hard, smooth
from ..noise import Cauchy, Contamination
from ..noise.fit import Fit
from ..quantiles.histogram import Histogram
from ..theory.entry import threshold_hard, threshold_smooth
from .gain import Gain, best_gain
from .localization import Localization
from .stream import Spike
from .tails import TailIndex

_OFTEN = 0.1  # of the samples: from here on, with 95 % confidence, spikes are no accident
_SURE = 0.01  # p-value of R-hat along the first direction


@dataclass(frozen=True)
class Recommendation:
    """What to do about one matrix; `print` it for a sentence."""

    verdict: str  # "spikes", "rare spikes", "one entry", "no spikes" or "nothing to see"
    sure: str  # "sure", "likely" or "unsure"
    reason: str
    clip: Clip | None = None
    stage: str | None = None  # "microbatch": each one before the mean (ClippedMean); "pre": Muon's pre, AdamW's post
    quantile: float | None = None
    threshold: float | None = None  # that quantile of one sample's noise, as a gradient
    theory: float | None = None  # the smallest threshold of the theorems, for the fitted noise
    gain: float | None = None  # as if the batch were so many times larger

    @property
    def clips(self) -> bool:
        """Whether clipping is advised, and not just in case."""
        return self.verdict == "spikes"

    def __str__(self) -> str:
        if self.clip is None:
            return f"no clipping needed ({self.sure}): {self.reason}"
        return f"{self.clip} at stage {self.stage} ({self.sure}): {self.reason}"


def recommend(
    spikes: Sequence[Spike],
    samples: int,
    histogram: Histogram,
    *,
    scale: float,
    localized: Localization | None,
    tail: TailIndex | None,
    fit: Fit | None,
    bound: float,
    rank: int,
) -> Recommendation:
    """Advice from the measurements of `samples` gradients.

    scale     of the noise, the histogram's unit
    fit       of the noise in that unit
    bound     the largest entry of the signal, as a gradient
    rank      the shorter side of the matrix
    """
    share = f"one entry carries more than half of sigma_1 in {len(spikes)} of {samples} samples"
    if not spikes:
        return Recommendation("no spikes", _sure_of_none(samples), share.replace(" 0 of", " none of"))
    where = Counter((spike.row, spike.column) for spike in spikes)
    place, times = where.most_common(1)[0]
    if times > 2 and times > len(spikes) / 2:
        same = f"{share}, in {times} of them the same one, row {place[0]} column {place[1]}"
        return Recommendation("one entry", "likely", f"{same}: it belongs to the gradient, a clip would take it away")
    gain = max((best_gain(histogram, operator) for operator in ("hard", "smooth")), key=lambda each: each.factor)
    sure, stage = _sure(len(spikes), samples, localized), _stage(tail)
    return Recommendation(
        "rare spikes" if sure == "unsure" else "spikes",
        sure,
        f"{share}; {_stage_reason(stage, tail)}",
        {"hard": hard, "smooth": smooth}[gain.operator](gain.quantile),
        stage,
        gain.quantile,
        gain.threshold * scale,
        _theory(gain, fit, scale, bound, rank),
        gain.factor,
    )


def _sure(spikes: int, samples: int, localized: Localization | None) -> str:
    """unsure: their share of the samples may be below 10 %; sure: R-hat too says that single entries stand out."""
    if stats.beta.ppf(0.05, spikes, samples - spikes + 1) < _OFTEN:  # Clopper and Pearson's lower end
        return "unsure"
    if localized is None or not localized.median[0] > 1 or localized.p_median()[0] > _SURE:
        return "likely"
    return "sure"


def _sure_of_none(samples: int) -> str:
    """How well we know that there are no spikes: with none in n samples, their share is below 1 - 0.05^(1/n)."""
    return "sure" if 1 - 0.05 ** (1 / samples) < _OFTEN else "likely" if samples >= 10 else "unsure"


def _stage(tail: TailIndex | None) -> str:
    return "microbatch" if tail is not None and tail.verdict == "power law" and tail.index < 2 else "pre"


def _stage_reason(stage: str, tail: TailIndex | None) -> str:
    if stage == "microbatch" and tail is not None:
        return f"with tail index {tail.index:.2g} < 2 a mean over the batch lets them through"
    return "a mean over the batch dampens them, so a clip of what it leaves is enough"


def _theory(gain: Gain, fit: Fit | None, scale: float, bound: float, rank: int) -> float | None:
    """Of lem:pre-thresholds-app, as a gradient; None where the fitted noise is not theirs."""
    if fit is None or not isinstance(fit.noise, Contamination) or not isinstance(fit.noise.heavy, Cauchy):
        return None
    noise = fit.noise
    inside = Contamination(noise.alpha, noise.sigma * scale, Cauchy(noise.heavy.gamma * scale))  # type: ignore[union-attr]
    least = threshold_hard if gain.operator == "hard" else threshold_smooth
    found = least(inside, bound, 0.25 / math.sqrt(rank))
    return float(found) if math.isfinite(found) else None
