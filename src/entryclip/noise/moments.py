"""Exact mean and variance of a clipped entry, phi(g + e), by quadrature; the paper's lemmas bound them.

The noise is symmetric and phi odd, so with h its density

    E phi(g + e) = phi(g) + int_0^inf [phi(g + u) + phi(g - u) - 2 phi(g)] h(u) du,

and the second moment is taken about phi(g) too, so that weak noise loses no digits. Each part of a mixture is
integrated on its own, on panels that grow geometrically from far below its scale, cut at the operator's kinks.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .laws import Cauchy, Contamination, Gaussian, Law, StudentT

Operator = Callable[[np.ndarray, float], np.ndarray]  # (x, threshold) -> x, odd, with kinks at 0 and +-threshold only


class Moments(NamedTuple):
    """Mean and variance of phi(g + e), one value per g."""

    mean: np.ndarray
    variance: np.ndarray


def moments(operator: Operator, threshold: float, g: np.ndarray, noise: Law) -> Moments:
    """Compute mean and variance of operator(g + e, threshold), for a vector g of entries of the true gradient.

    >>> from entryclip import hard_clip
    >>> mean, variance = moments(hard_clip, 3.0, np.array([0.0, 1.0]), Contamination(0.05, 1.0, Cauchy(1.0)))
    >>> mean.round(4).tolist(), variance.round(4).tolist()
    ([0.0, 0.9814], [1.0932, 1.0605])
    """
    g = np.atleast_1d(np.asarray(g, dtype=float))
    if not np.isfinite(g).all():
        raise ValueError(f"g has {int((~np.isfinite(g)).sum())} entries that are NaN or infinite: remove them first")
    clean = operator(g, threshold)
    shift, square = np.zeros_like(g), np.zeros_like(g)
    for weight, law in _parts(noise):
        pairs = [_integrals(operator, threshold, *each, law) for each in zip(g, clean, strict=True)]
        first, second = np.array(pairs).reshape(-1, 2).T
        shift += weight * first
        square += weight * second
    return Moments(clean + shift, square - shift**2)


def _parts(noise: Law) -> list[tuple[float, Law]]:
    """Return the parts of a mixture with their weights, without those of weight 0."""
    if not isinstance(noise, Contamination):
        return [(1.0, noise)]
    parts: list[tuple[float, Law]] = [(1 - noise.alpha, Gaussian(noise.sigma)), (noise.alpha, noise.heavy)]
    return [(weight, law) for weight, law in parts if weight > 0]


def _integrals(operator: Operator, threshold: float, g: float, clean: float, law: Law) -> tuple[float, float]:
    """Integrate E (phi - clean) and E (phi - clean)^2 under one law."""
    scale = _scale(law)
    if scale == 0:
        return 0.0, 0.0
    kinks = [abs(g), abs(threshold - abs(g)), threshold + abs(g)]
    end = 40 * scale if isinstance(law, Gaussian) else 1e14 * (scale + threshold + abs(g))
    u, weight = panels(kinks, 1e-3 * min(scale, threshold), end)
    weight = weight * law.density(u)
    up, down = operator(g + u, threshold) - clean, operator(g - u, threshold) - clean
    return float(weight @ (up + down)), float(weight @ (up**2 + down**2))


def panels(kinks: list[float], start: float, end: float, growth: float = 0.4) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of a composite Gauss-Legendre rule on [0, end]: growing panels, cut at the kinks."""
    growing = np.geomspace(start, end, max(2, int(np.log(end / start) / growth)))
    edges = np.unique(np.concatenate([[0.0], growing, [k for k in kinks if 0 < k < end]]))
    x, w = np.polynomial.legendre.leggauss(16)
    middle, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
    return (middle[:, None] + half[:, None] * x).ravel(), (half[:, None] * w).ravel()


def _scale(law: Law) -> float:
    """Return the scale of one part, the unit of its panels."""
    if isinstance(law, Gaussian):
        return law.sigma
    if isinstance(law, Cauchy):
        return law.gamma
    if isinstance(law, StudentT):
        return law.scale
    raise TypeError(f"moments are there for Gaussian, Cauchy, StudentT and Contamination, got {law!r}")
