"""What clipping its entries would do to noise, from its histogram alone: no model of the noise.

A small signal g under symmetric noise x passes an odd operator f as g E[f'(x)], with variance E[f(x)^2] around it. So

    gain = E[f'(x)]^2 E[x^2] / E[f(x)^2]

is how much f improves the ratio of signal to noise over no clipping: as if the batch were so many times larger. It is
at most 1 for Gaussian noise, and without limit where x has no variance. (Divided by the Fisher information instead of
1/E[x^2] it would be the efficiency of an M-estimator, Huber 1964.)
"""

import math
from typing import NamedTuple

import numpy as np

from ..quantiles.histogram import Histogram

QUANTILES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999, 0.99999)


class Gain(NamedTuple):
    """The best threshold of an operator, among some quantiles of |x|."""

    operator: str  # "hard" or "smooth"
    quantile: float
    threshold: float
    factor: float


def best_gain(histogram: Histogram, operator: str) -> Gain:
    """The quantile at which hard or smooth clipping gains most.

    >>> import torch
    >>> from entryclip.noise import Cauchy, Contamination
    >>> g = torch.Generator().manual_seed(0)
    >>> round(best_gain(Histogram.of(torch.randn(10**5, generator=g)), "hard").factor, 2)
    1.0
    >>> noise = Contamination(0.05, 1.0, Cauchy(3.0)).sample((10**6,), g)
    >>> found = best_gain(Histogram.of(noise), "smooth")
    >>> found.quantile, found.factor > 100
    (0.98, True)
    """
    low, high, count = histogram.occupied()
    if not count.size:
        raise ValueError("the histogram has no entry that is not zero")
    size, weight = np.sqrt(low * high), count / count.sum()
    size = size / size.max()  # so that no square leaves the range of numbers
    power = float(weight @ size**2)
    below = np.cumsum(weight)
    found = []
    for q in QUANTILES:
        threshold = float(size[min(np.searchsorted(below, q), len(size) - 1)])
        slope, variance = _moments(operator, size, weight, threshold)
        found.append(Gain(operator, q, threshold * math.sqrt(float(low[-1] * high[-1])), slope**2 * power / variance))
    return max(found, key=lambda gain: gain.factor)


def _moments(operator: str, size: np.ndarray, weight: np.ndarray, threshold: float) -> tuple[float, float]:
    """E[f'(x)] and E[f(x)^2]."""
    if operator == "hard":
        return float(weight @ (size < threshold)), float(weight @ np.minimum(size, threshold) ** 2)
    if operator == "smooth":
        damping = np.exp(-size / threshold)
        return float(weight @ ((1 - size / threshold) * damping)), float(weight @ (size * damping) ** 2)
    raise ValueError(f"operator must be hard or smooth, got {operator!r}")
