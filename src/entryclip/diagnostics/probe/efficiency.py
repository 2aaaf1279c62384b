"""The relative efficiency of an entry-wise clip, from a histogram of the noise: no model of the noise is needed.

A small signal g under symmetric noise x passes an odd operator f as g E[f'(x)], with variance E[f(x)^2] around it. So

    efficiency = E[f'(x)]^2 E[x^2] / E[f(x)^2]

is the factor by which f improves the squared ratio of signal to noise over no clipping, as if the batch were so many
times larger: the asymptotic relative efficiency of f, as an M-estimator (Huber 1964), against the mean. It is at most 1
for Gaussian noise, and without limit where x has no variance.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ...quantiles.histogram import Histogram

QUANTILES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999, 0.99999)


class ClipEfficiency(NamedTuple):
    """The most efficient threshold of an operator, among some quantiles of |x|."""

    operator: str  # "hard" or "smooth"
    quantile: float
    threshold: float
    factor: float  # the relative efficiency


def best_clip(histogram: Histogram) -> ClipEfficiency:
    """Find the operator, hard or smooth, and the quantile that are most efficient.

    Among those within 2 % of the best, which chance decides, it is the largest quantile: the clip that touches least.
    """
    found = [each for operator in _MOMENTS for each in clip_efficiencies(histogram, operator)]
    good = 0.98 * max(each.factor for each in found)
    return max((each for each in found if each.factor >= good), key=lambda each: (each.quantile, each.factor))


def best_efficiency(histogram: Histogram, operator: str) -> ClipEfficiency:
    """Find the quantile at which hard or smooth clipping is most efficient.

    >>> import torch
    >>> from entryclip.noise import Cauchy, Contamination
    >>> g = torch.Generator().manual_seed(0)
    >>> round(best_efficiency(Histogram.of(torch.randn(10**5, generator=g)), "hard").factor, 2)
    1.0
    >>> noise = Contamination(0.05, 1.0, Cauchy(3.0)).sample((10**6,), g)
    >>> found = best_efficiency(Histogram.of(noise), "smooth")
    >>> found.quantile, found.factor > 100
    (0.98, True)
    """
    return max(clip_efficiencies(histogram, operator), key=lambda each: each.factor)


def clip_efficiencies(histogram: Histogram, operator: str) -> list[ClipEfficiency]:
    """Return the efficiency of hard or smooth clipping at each of `QUANTILES`."""
    if operator not in _MOMENTS:
        raise ValueError(f"operator must be hard or smooth, got {operator!r}")
    low, high, count = histogram.occupied()
    if not count.size:
        raise ValueError("the histogram has no entry that is not zero")
    size, weight = np.sqrt(low * high), count / count.sum()
    size = size / size.max()  # squares of raw sizes could overflow
    power = float(weight @ size**2)
    below = np.cumsum(weight)
    found = []
    for q in QUANTILES:
        threshold = float(size[min(np.searchsorted(below, q), len(size) - 1)])
        slope, variance = _MOMENTS[operator](size, weight, threshold)
        unscaled = threshold * math.sqrt(float(low[-1] * high[-1]))
        found.append(ClipEfficiency(operator, q, unscaled, slope**2 * power / variance))
    return found


def _hard_moments(size: np.ndarray, weight: np.ndarray, threshold: float) -> tuple[float, float]:
    """Return E[f'(x)] and E[f(x)^2] of the hard clip, for |x| = size with probability `weight`."""
    return float(weight @ (size < threshold)), float(weight @ np.minimum(size, threshold) ** 2)


def _smooth_moments(size: np.ndarray, weight: np.ndarray, threshold: float) -> tuple[float, float]:
    """Return E[f'(x)] and E[f(x)^2] of smooth shrinkage, for |x| = size with probability `weight`."""
    damping = np.exp(-size / threshold)
    return float(weight @ ((1 - size / threshold) * damping)), float(weight @ (size * damping) ** 2)


_MOMENTS: dict[str, Callable[[np.ndarray, np.ndarray, float], tuple[float, float]]] = {
    "hard": _hard_moments,
    "smooth": _smooth_moments,
}
