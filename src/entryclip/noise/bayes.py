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

from ..arrays import Array, double, namespace
from .heavy import heavy_branch
from .laws import Cauchy, Contamination, Gaussian, Law, StudentT, check_number, real


class Branches(NamedTuple):
    """The two terms of thm:main (i); their sum is the posterior mean."""

    gaussian: Array  # pi(y) beta y
    heavy: Array  # rho(y) = (1 - pi(y)) E[x | y, H]


def posterior_mean(y: Array, sigma_x: float, noise: Law) -> Array:
    """E[x | y], the entry-wise estimator of least mean squared error (prop:spectral_to_mse).

    `y` is a number or an array of torch or numpy; the answer has its shape and dtype. The relative error is below 1e-9
    for |y|/sigma_x from 1e-6 to 1e12 and scales of the noise from 1e-4 to 1e4 sigma_x.

    >>> noise = Contamination(alpha=0.05, sigma=1.0, heavy=Cauchy(1.0))
    >>> posterior_mean(torch.tensor([0.1, 1.0, 10.0, 1000.0]), 1.0, noise)
    tensor([0.0499, 0.4979, 0.2042, 0.0020])
    """
    gaussian, heavy = _split(y, sigma_x, noise)
    return _like(gaussian + heavy, y)


def branches(y: Array, sigma_x: float, noise: Law) -> Branches:
    """The two terms of the posterior mean (eq:thm_factor).

    >>> noise = Contamination(alpha=0.05, sigma=1.0, heavy=Cauchy(1.0))
    >>> gaussian, heavy = branches(10.0, 1.0, noise)
    >>> f"{float(gaussian):.1e} {float(heavy):.3f}"
    '1.1e-07 0.204'
    """
    gaussian, heavy = _split(y, sigma_x, noise)
    return Branches(_like(gaussian, y), _like(heavy, y))


def retention(y: Array, sigma_x: float, noise: Law) -> Array:
    """pi(y), the probability that the noise in `y` was Gaussian (eq:retention_bayes).

    >>> noise = Contamination(alpha=0.05, sigma=1.0, heavy=Cauchy(1.0))
    >>> [round(float(retention(y, 1.0, noise)), 4) for y in (0.0, 3.0, 6.0)]
    [0.9625, 0.9287, 0.0659]
    """
    alpha, sigma, heavy = _parts(sigma_x, noise)
    size = np.abs(_host(y)) / sigma_x
    log_f, _ = heavy_branch(size, _rescaled(heavy, sigma_x))
    return _like(expit(_log_odds(size, alpha, sigma / sigma_x, log_f)), y)


def log_marginal(y: Array, sigma_x: float, noise: Law) -> Array:
    """log of the density of y = x + e.

    >>> round(float(log_marginal(0.0, 3.0, Gaussian(4.0))), 4) == round(float(Gaussian(5.0).log_density(0.0)), 4)
    True
    """
    alpha, sigma, heavy = _parts(sigma_x, noise)
    size = np.abs(_host(y)) / sigma_x
    bulk = Gaussian(math.hypot(1, sigma / sigma_x)).log_density(size)
    log_f, _ = heavy_branch(size, _rescaled(heavy, sigma_x))
    with np.errstate(divide="ignore"):  # log 0 = -inf is what a part of weight 0 should have
        total = np.logaddexp(np.log1p(-alpha) + bulk, np.log(alpha) + log_f)
    return _like(total - math.log(sigma_x), y)


def wiener_coefficient(sigma_x: float, sigma: float) -> float:
    """beta = sigma_x^2 / (sigma_x^2 + sigma^2): what is kept of an entry under Gaussian noise.

    >>> wiener_coefficient(1.0, 2.0)
    0.2
    """
    check_number("sigma_x", sigma_x)
    check_number("sigma", sigma, positive=False)
    return 1 / (1 + (sigma / sigma_x) ** 2)


def _split(y: Array, sigma_x: float, noise: Law) -> tuple[np.ndarray, np.ndarray]:
    alpha, sigma, heavy = _parts(sigma_x, noise)
    signed = _host(y) / sigma_x
    size = np.abs(signed)
    log_f, mean = heavy_branch(size, _rescaled(heavy, sigma_x))
    odds = _log_odds(size, alpha, sigma / sigma_x, log_f)
    sign = np.copysign(sigma_x, signed)
    return sign * expit(odds) * wiener_coefficient(sigma_x, sigma) * size, sign * expit(-odds) * mean


def _log_odds(size: np.ndarray, alpha: float, sigma: float, log_f: np.ndarray) -> np.ndarray:
    """log of P(Gaussian | y) / P(heavy | y), in units of sigma_x."""
    if alpha in (0, 1):
        return np.full_like(size, math.inf if alpha == 0 else -math.inf)
    bulk = Gaussian(math.hypot(1, sigma)).log_density(size)
    return bulk - log_f + (math.log1p(-alpha) - math.log(alpha))


def _parts(sigma_x: float, noise: Law) -> tuple[float, float, Cauchy | StudentT]:
    check_number("sigma_x", sigma_x)
    if isinstance(noise, Gaussian):
        return 0.0, noise.sigma, Cauchy(sigma_x)  # with alpha = 0 the heavy part does not count
    if isinstance(noise, Cauchy | StudentT):
        return 1.0, 0.0, noise
    if isinstance(noise, Contamination):
        return float(noise.alpha), noise.sigma, noise.heavy
    raise TypeError(f"the posterior mean is there for Gaussian, Cauchy, StudentT and Contamination, got {noise!r}")


def _rescaled(heavy: Cauchy | StudentT, sigma_x: float) -> Cauchy | StudentT:
    """`heavy` in units of sigma_x, if the numbers of `heavy.py` reach so far."""
    scale = (heavy.gamma if isinstance(heavy, Cauchy) else heavy.scale) / sigma_x
    if not 1e-20 <= scale <= 1e20:
        raise ValueError(f"the heavy part's scale over sigma_x must be from 1e-20 to 1e20, got {scale:g}")
    if isinstance(heavy, Cauchy):
        return Cauchy(scale)
    if heavy.nu > 200:
        raise ValueError(f"nu must be at most 200 here, got {heavy.nu:g}: beyond that use Gaussian({heavy.scale:g})")
    return StudentT(heavy.nu, scale)


def _host(y: Array) -> np.ndarray:
    """`y` in fp64 on the host, all finite."""
    y = real(y)
    values = np.asarray(double(y).detach().cpu() if isinstance(y, torch.Tensor) else y, dtype=float)
    if not np.isfinite(values).all():
        raise ValueError(
            f"y has {int((~np.isfinite(values)).sum())} entries that are NaN or infinite: remove them first"
        )
    return values


def _like(values: np.ndarray, y: Any) -> Array:
    """`values` in the library, dtype and on the device of `y`."""
    if isinstance(y, torch.Tensor):
        return torch.from_numpy(np.asarray(values)).to(dtype=y.dtype, device=y.device)
    return namespace(y).asarray(values, dtype=y.dtype) if hasattr(y, "dtype") else values
