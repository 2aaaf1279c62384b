"""Bias and variance of one clipped entry, phi(g + e): the bounds of the paper, and the exact values.

All four theorems rest on two bounds for an entry |g| <= B, on its relative bias (def:relative-bias-app) and variance,

    |E phi(g + e) - g| <= rho |g|,    Var phi(g + e) <= v,    e ~ (1-alpha) N(0, sigma^2) + alpha Cauchy(gamma).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_ndtr

from ..arrays import Array
from ..noise import Cauchy, Contamination, Gaussian
from ..noise.contamination import mixture_parts
from ..noise.laws import Law, check_number
from ..noise.moments import half_line_rule, moments
from ..operators import hard_clip, smooth_shrinkage


def rho_hard(tau: float, noise: Law, bound: float) -> float:
    """Bound the relative bias of hard clipping (lem:hard-relative-bias-app, eq:rho-hard-app).

    >>> round(rho_hard(3.0, Contamination(0.05, 1.0, Cauchy(1.0)), bound=1.0), 4)
    0.0552
    """
    alpha, sigma, gamma = _parameters(noise)
    check_bound(bound)
    if not tau > bound:
        raise ValueError(f"hard clipping needs a threshold above the bound {bound:g} on the gradient, got {tau:g}")
    gaussian = 2 * (1 - alpha) * math.exp(log_ndtr(-(tau - bound) / sigma)) if sigma > 0 else 0.0
    return gaussian + alpha * gamma / math.pi * (1 / (tau - bound) + 1 / (tau + bound))


def rho_smooth(c: float, noise: Law, bound: float) -> float:
    """Bound the relative bias of smooth shrinkage (lem:smooth-relative-bias-app, eq:rho-smooth-app).

    >>> round(rho_smooth(20.0, Contamination(0.05, 1.0, Cauchy(1.0)), bound=1.0), 4)
    0.1457
    """
    alpha, sigma, gamma = _parameters(noise)
    check_bound(bound)
    check_threshold(c)
    heavy = 8 * alpha * gamma / (math.pi * c) * math.log(math.e + c / gamma)
    return (bound + math.sqrt(8 / math.pi) * (1 - alpha) * sigma) / c + heavy


def variance_hard(tau: float, noise: Law) -> float:
    """Bound the variance of a hard-clipped entry (lem:hard-variance-app, eq:v-hard-app).

    >>> round(variance_hard(3.0, Contamination(0.05, 1.0, Cauchy(1.0))), 4)
    1.141
    """
    alpha, sigma, gamma = _parameters(noise)
    check_threshold(tau)
    return (1 - alpha) * sigma**2 + 4 * alpha * gamma * tau / math.pi


def variance_smooth(c: float, noise: Law) -> float:
    """Bound the variance of a smoothly shrunk entry (lem:smooth-variance-app, eq:v-smooth-app).

    >>> round(variance_smooth(20.0, Contamination(0.05, 1.0, Cauchy(1.0))), 4)
    1.8868
    """
    alpha, sigma, gamma = _parameters(noise)
    check_threshold(c)
    return (1 - alpha) * sigma**2 + 8 * alpha * gamma * c / (math.pi * math.e)


def threshold_hard(noise: Law, bound: float, slack: float) -> float:
    """Return the theorems' smallest tau, which makes rho_hard <= slack.

    The lemmas are lem:post-thresholds-app and lem:pre-thresholds-app, with a slack of 1/2
    for post-clipping and 1/(4 sqrt(r)) for pre-clipping.

    >>> round(threshold_hard(Contamination(0.05, 1.0, Cauchy(1.0)), bound=1.0, slack=0.5), 4)
    3.0393
    """
    alpha, sigma, gamma = _parameters(noise)
    check_bound(bound)
    return bound + max(sigma * math.sqrt(2 * math.log(4 / slack)), 4 * alpha * gamma / (math.pi * slack))


def threshold_smooth(noise: Law, bound: float, slack: float) -> float:
    """Return the theorems' smallest c, which makes rho_smooth <= slack; lemmas and slack as for `threshold_hard`.

    >>> round(threshold_smooth(Contamination(0.05, 1.0, Cauchy(1.0)), bound=1.0, slack=0.5), 4)
    10.0639
    """
    alpha, sigma, gamma = _parameters(noise)
    check_bound(bound)
    a = 32 * alpha / (math.pi * slack)
    return max(2 / slack * (bound + math.sqrt(8 / math.pi) * (1 - alpha) * sigma), gamma * a * math.log(math.e + a))


class EntryMoments(NamedTuple):
    """The relative bias and the variance of one clipped entry, each at the worst g."""

    rho: float  # the largest |E phi(g + e) - g| / |g| over 0 < |g| <= B
    variance: float  # the largest variance of phi(g + e) over |g| <= B


@dataclass(frozen=True)
class OperatorBounds:
    """An operator with the paper's bounds for it."""

    operator: Callable[[Array, Any], Array]
    threshold: Callable[[Law, float, float], float]  # (noise, bound, slack) -> smallest threshold
    rho: Callable[[float, Law, float], float]  # (threshold, noise, bound) -> relative bias
    variance: Callable[[float, Law], float]  # (threshold, noise) -> variance
    deficit: Callable[[Any, float], Any]  # (x, threshold) -> 1 - phi'(x)
    peak: float  # largest output / threshold


def _deficit_hard(x: np.ndarray, tau: float) -> np.ndarray:
    return np.where(np.abs(x) < tau, 0.0, 1.0)


def _deficit_smooth(x: np.ndarray, c: float) -> np.ndarray:
    t = np.abs(x) / c
    return t * np.exp(-t) - np.expm1(-t)


OPERATOR_BOUNDS = {
    "hard": OperatorBounds(hard_clip, threshold_hard, rho_hard, variance_hard, _deficit_hard, 1.0),
    "smooth": OperatorBounds(
        smooth_shrinkage, threshold_smooth, rho_smooth, variance_smooth, _deficit_smooth, 1 / math.e
    ),
}


def exact(operator: str, threshold: float, noise: Law, bound: float) -> EntryMoments:
    """Compute rho exactly, by quadrature, and the variance so at the worst g of a fine grid on [0, B].

    The variance is that of this very noise: weaker noise can have a larger one, as entries far beyond the threshold
    are shrunk to almost nothing, and those near it are not. `variance_bound` holds for weaker noise, too.

    >>> noise = Contamination(0.05, 1.0, Cauchy(1.0))
    >>> rho, variance = exact("hard", 3.0, noise, bound=1.0)
    >>> rho < rho_hard(3.0, noise, 1.0), variance < variance_hard(3.0, noise)
    (True, True)
    """
    rho = relative_bias(operator, threshold, noise, bound)
    g = bound * np.concatenate([[0.0], np.geomspace(1e-2, 0.1, 4), np.linspace(0.15, 1, 18)])
    _, variance = moments(bounds_of(operator).operator, threshold, g, noise)
    return EntryMoments(rho, float(variance.max()))


def relative_bias(operator: str, threshold: float, noise: Law, bound: float) -> float:
    """Compute the largest |E phi(g + e) - g| / |g| over 0 < |g| <= B, which is the one at B; at B = 0 its limit.

    Why it is the one at B stands in `exact_bias.py`. Where B is far below the threshold, phi(g + e) - phi(e) would lose
    digits, so there the bias is the mean over 0 <= s <= B of E[1 - phi'(s + e)], a sum of positive terms.

    >>> from entryclip.noise import StudentT
    >>> round(relative_bias("hard", 3.0, StudentT(3.0), bound=1.0), 4)
    0.0659
    """
    check_bound(bound)
    check_threshold(threshold)
    clip = bounds_of(operator)
    if bound > 1e-4 * threshold:
        mean = moments(clip.operator, threshold, np.array([bound]), noise).mean
        return max(0.0, float(1 - mean[0] / bound))
    x, w = np.polynomial.legendre.leggauss(8 if bound > 0 else 1)
    deficits = [_mean_deficit(clip, threshold, noise, bound * (1 + node) / 2) for node in x]
    return float(w @ deficits) / 2


def _mean_deficit(clip: OperatorBounds, threshold: float, noise: Law, s: float) -> float:
    """Compute E[1 - phi'(s + e)] for one 0 <= s < threshold."""
    total = 0.0
    for weight, law in mixture_parts(noise):
        u, rule = half_line_rule(law, [s, threshold - s, threshold + s], threshold)
        total += weight * float(rule @ (clip.deficit(s + u, threshold) + clip.deficit(s - u, threshold)))
    return total


def in_paper(noise: Law) -> bool:
    """Tell whether the paper's closed forms cover this noise: Gaussian, Cauchy, or contamination by Cauchy.

    >>> in_paper(Cauchy(2.0)), in_paper(Contamination(0.1, 1.0, Gaussian(3.0)))
    (True, False)
    """
    return isinstance(noise, Gaussian | Cauchy) or (
        isinstance(noise, Contamination) and isinstance(noise.heavy, Cauchy)
    )


def _parameters(noise: Law) -> tuple[float, float, float]:
    """Return alpha, sigma and gamma of the noise, or raise a ValueError if the closed forms do not cover it."""
    if isinstance(noise, Gaussian):
        return 0.0, noise.sigma, 1.0
    if isinstance(noise, Cauchy):
        return 1.0, 0.0, noise.gamma
    if isinstance(noise, Contamination) and isinstance(noise.heavy, Cauchy):
        return noise.alpha, noise.sigma, noise.heavy.gamma
    model = "(1-alpha) N(0, sigma^2) + alpha Cauchy(gamma)"
    raise ValueError(f"the paper's closed forms cover {model} only, got {noise!r}: take the exact bias for other laws")


def bounds_of(operator: str) -> OperatorBounds:
    """Return the bounds for the operator of that name, "hard" or "smooth"."""
    if operator not in OPERATOR_BOUNDS:
        raise ValueError(f"operator must be one of {', '.join(OPERATOR_BOUNDS)}, got {operator!r}")
    return OPERATOR_BOUNDS[operator]


def check_bound(bound: float) -> None:
    """Raise a ValueError unless `bound` is a finite number >= 0."""
    check_number("bound", bound, positive=False)


def check_threshold(threshold: float) -> None:
    """Raise a ValueError unless `threshold` is a finite number above 0."""
    check_number("threshold", threshold)
