"""The Bayes estimator of an entry: x ~ N(0, sigma_x^2) observed as y = x + e, e ~ (1-alpha) N(0, sigma^2) + alpha H.

It splits by the kind of noise (prop:mixture, prop:gaussian_posterior, thm:main (i)):

    E[x | y] = pi(y) beta y + (1 - pi(y)) E[x | y, H],    beta = sigma_x^2 / (sigma_x^2 + sigma^2),
    pi(y) = P(e is Gaussian | y)                                                     (eq:retention_bayes).

Both terms have the sign of y, so nothing cancels between them; `heavy.py` has the second one's mean. The paper's smooth
shrinkage drops that term, but far out it is the larger one: rho(y) is about (nu + 1) sigma_x^2 / y, while pi(y) falls
like a Gaussian density.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import expit

from ..arrays import Array, is_array, namespace, to_numpy
from .contamination import Contamination
from .heavy import heavy_branch
from .laws import Cauchy, Gaussian, Law, StudentT, check_number, real

_SCALES = (1e-20, 1e20)  # scales of the heavy part over sigma_x that heavy.py covers
_LARGEST_NU = 200.0
_FAR = 1e250  # |y| / sigma_x up to which heavy.py is asked: beyond, both its results are powers of y to all digits


class Branches(NamedTuple):
    """The two terms of thm:main (i); their sum is the posterior mean."""

    gaussian: Array  # pi(y) beta y
    heavy: Array  # rho(y) = (1 - pi(y)) E[x | y, H]


def posterior_mean(y: Array, sigma_x: float, noise: Law) -> Array:
    """Compute E[x | y], the entry-wise estimator of least mean squared error (prop:spectral_to_mse).

    `y` is a number or an array of torch, numpy or jax; the result has its shape and dtype. The relative error is below
    1e-9 for |y|/sigma_x from 1e-6 to 1e12 and scales of the noise from 1e-4 to 1e4 sigma_x; beyond, the result is
    finite and between 0 and y. A heavy part with a scale outside 1e-20 to 1e20 sigma_x, or nu above 200, is an error.

    >>> import torch
    >>> noise = Contamination(alpha=0.05, sigma=1.0, heavy=Cauchy(1.0))
    >>> posterior_mean(torch.tensor([0.1, 1.0, 10.0, 1000.0]), 1.0, noise)
    tensor([0.0499, 0.4979, 0.2042, 0.0020])
    """
    gaussian, heavy = _split(y, sigma_x, noise)
    return _like(gaussian + heavy, y)


def branches(y: Array, sigma_x: float, noise: Law) -> Branches:
    """Compute the two terms of the posterior mean (eq:thm_factor).

    >>> noise = Contamination(alpha=0.05, sigma=1.0, heavy=Cauchy(1.0))
    >>> gaussian, heavy = branches(10.0, 1.0, noise)
    >>> f"{float(gaussian):.1e} {float(heavy):.3f}"
    '1.1e-07 0.204'
    """
    gaussian, heavy = _split(y, sigma_x, noise)
    return Branches(_like(gaussian, y), _like(heavy, y))


def retention(y: Array, sigma_x: float, noise: Law) -> Array:
    """Compute pi(y), the probability that the noise in `y` was Gaussian (eq:retention_bayes).

    >>> noise = Contamination(alpha=0.05, sigma=1.0, heavy=Cauchy(1.0))
    >>> [round(float(retention(y, 1.0, noise)), 4) for y in (0.0, 3.0, 6.0)]
    [0.9625, 0.9287, 0.0659]
    """
    return _like(expit(_Parts.of(np.abs(_finite(y)), sigma_x, noise).log_odds), y)


def log_marginal(y: Array, sigma_x: float, noise: Law) -> Array:
    """Compute the logarithm of the density of y = x + e.

    >>> round(float(log_marginal(0.0, 3.0, Gaussian(4.0))), 4) == round(float(Gaussian(5.0).log_density(0.0)), 4)
    True
    """
    parts = _Parts.of(np.abs(_finite(y)), sigma_x, noise)
    with np.errstate(divide="ignore"):  # log 0 = -inf is right for a part of weight 0
        total = np.logaddexp(np.log1p(-parts.alpha) + parts.log_bulk, np.log(parts.alpha) + parts.log_heavy)
    return _like(total, y)


def wiener_coefficient(sigma_x: float, sigma: float) -> float:
    """Compute beta = sigma_x^2 / (sigma_x^2 + sigma^2), the share of an entry that is kept under Gaussian noise.

    >>> wiener_coefficient(1.0, 2.0)
    0.2
    """
    check_number("sigma_x", sigma_x)
    check_number("sigma", sigma, positive=False)
    ratio = sigma / sigma_x
    return 1 / (1 + ratio * ratio)


class _Parts(NamedTuple):
    """The two parts of the noise at given |y|: the density of y under each, and the heavy one's posterior mean."""

    alpha: float
    log_bulk: np.ndarray  # log density of y under Gaussian noise
    log_heavy: np.ndarray  # log density of y under the heavy part
    heavy_mean: np.ndarray  # |E[x | y, H]|

    @classmethod
    def of(cls, size: np.ndarray, sigma_x: float, noise: Law) -> "_Parts":
        """Evaluate both at |y| = `size`."""
        alpha, sigma, heavy = _parameters(sigma_x, noise)
        bulk = Gaussian(math.hypot(sigma_x, sigma)).log_density(size)
        return cls(alpha, bulk, *_heavy(size, sigma_x, heavy))

    @property
    def log_odds(self) -> np.ndarray:
        """log of P(Gaussian | y) / P(heavy | y)."""
        if self.alpha in (0, 1):
            return np.full_like(self.log_bulk, math.inf if self.alpha == 0 else -math.inf)
        return self.log_bulk - self.log_heavy + (math.log1p(-self.alpha) - math.log(self.alpha))


def _split(y: Array, sigma_x: float, noise: Law) -> tuple[np.ndarray, np.ndarray]:
    """Compute the two terms of the posterior mean, in fp64."""
    signed = _finite(y)
    parts = _Parts.of(np.abs(signed), sigma_x, noise)
    sigma = _parameters(sigma_x, noise)[1]
    ratio = sigma / sigma_x
    kept = wiener_coefficient(sigma_x, sigma) * signed if ratio < 1e150 else signed / ratio / ratio  # beta underflows
    return expit(parts.log_odds) * kept, np.copysign(expit(-parts.log_odds) * parts.heavy_mean, signed)


def _heavy(size: np.ndarray, sigma_x: float, heavy: Cauchy | StudentT) -> tuple[np.ndarray, np.ndarray]:
    """Compute the log density of y and |E[x | y]| at |y| = `size`, with heavy noise only, at any size."""
    rescaled = _rescaled(heavy, sigma_x)
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        log_beyond = np.maximum(np.log(size) - math.log(sigma_x) - math.log(_FAR), 0)
        log_f, mean = heavy_branch(np.minimum(size / sigma_x, _FAR), rescaled)
        beyond = np.where(log_beyond > 0, _FAR * (sigma_x / np.maximum(size, 1e-300)), 1.0)
    return log_f - (heavy.tail_index + 1) * log_beyond - math.log(sigma_x), sigma_x * mean * beyond


def _parameters(sigma_x: float, noise: Law) -> tuple[float, float, Cauchy | StudentT]:
    """Return alpha, sigma and the heavy part."""
    check_number("sigma_x", sigma_x)
    unused = Cauchy(sigma_x)  # a heavy part of weight 0, in the middle of the range
    if isinstance(noise, Gaussian):
        return 0.0, noise.sigma, unused
    if isinstance(noise, Cauchy | StudentT):
        return 1.0, 0.0, noise
    if isinstance(noise, Contamination) and noise.alpha == 0:
        return 0.0, noise.sigma, unused
    if isinstance(noise, Contamination) and isinstance(noise.heavy, Cauchy | StudentT):
        return float(noise.alpha), noise.sigma, noise.heavy
    known = "Gaussian, Cauchy, StudentT and Contamination by Cauchy or StudentT"
    raise TypeError(f"the posterior mean is there for {known}, got {noise!r}")


def _rescaled(heavy: Cauchy | StudentT, sigma_x: float) -> Cauchy | StudentT:
    """Return `heavy` in units of sigma_x, or raise a ValueError where `heavy.py` does not reach so far."""
    scale = (heavy.gamma if isinstance(heavy, Cauchy) else heavy.scale) / sigma_x
    if not _SCALES[0] <= scale <= _SCALES[1]:
        raise ValueError(f"the heavy part's scale over sigma_x must be from 1e-20 to 1e20, got {scale:g}")
    if isinstance(heavy, Cauchy):
        return Cauchy(scale)
    if heavy.nu > _LARGEST_NU:
        raise ValueError(
            f"nu must be at most {_LARGEST_NU:g} here, got {heavy.nu:g}: beyond that use Gaussian({heavy.scale:g})"
        )
    return StudentT(heavy.nu, scale)


def _finite(y: Array) -> np.ndarray:
    """Convert `y` to fp64 on the host, or raise a ValueError where an entry is not finite."""
    values = to_numpy(real(y)).astype(float)
    if not np.isfinite(values).all():
        raise ValueError(
            f"y has {int((~np.isfinite(values)).sum())} entries that are NaN or infinite: remove them first"
        )
    return values


def _like(values: np.ndarray, y: Any) -> Array:
    """Convert `values` to the library, dtype and device of `y`; a numpy array where `y` is a number or a list."""
    if isinstance(y, torch.Tensor):
        return torch.from_numpy(np.asarray(values)).to(dtype=y.dtype, device=y.device)
    return namespace(y).asarray(values, dtype=y.dtype) if is_array(y) or isinstance(y, np.generic) else values
