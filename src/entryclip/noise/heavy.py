"""Gaussian signal plus heavy-tailed noise: the marginal density and the posterior mean, to twelve digits.

In units of sigma_x, with x ~ N(0, 1), e ~ `heavy` and y = x + e, `heavy_branch(y, heavy)` gives log f(y) and E[x | y].

Cauchy noise has a closed form. With z = (y + i gamma)/sqrt(2) and w(z) Faddeeva's function,

    f = Re(w) / sqrt(2 pi),    E[x | y] = sqrt(2) Re(z w) / Re(w).

Re(z w) cancels like |z|^2, so far out the mean comes from the asymptotic series w = i/sqrt(pi) sum_k c_k z^(-2k-1).

Student's t is a mixture of Gaussians of variance scale^2/l, l ~ Gamma(nu/2, nu/2). With p = l/(l + scale^2), a = y^2/2,

    f(y) = E[sqrt(p/(2 pi)) exp(-a p)],    E[x | y] = y E[p sqrt(p) exp(-a p)] / E[sqrt(p) exp(-a p)]:

all terms are positive, so nothing cancels. In log l the trapezoidal rule converges geometrically, and one set of nodes
serves every y. The two functions of a are kept as a table of polynomials. (t_3 has a closed form by Faddeeva's function
too, but it cancels like (y/scale)^2 everywhere; the tests use it where it does not.)
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial import chebyshev
from scipy import special

from .laws import Cauchy, StudentT

Real = np.ndarray
_DEGREE = 10  # even: the middle of an interval is a node
_FAR = 40.0  # |y + i gamma| from which the series is used: its 12th term is below 1e-22, exp(-|z|^2) rounds to 0


def heavy_branch(y: Real, heavy: Cauchy | StudentT) -> tuple[Real, Real]:
    """Compute log f(y), f the density of y = x + e, and E[x | y], for x ~ N(0, 1), e ~ `heavy`, y >= 0 in fp64."""
    if isinstance(heavy, Cauchy) or heavy.nu == 1:
        return _cauchy(y, heavy.gamma if isinstance(heavy, Cauchy) else heavy.scale)
    return _table(float(heavy.nu), float(heavy.scale)).at(y)


def _cauchy(y: Real, gamma: float) -> tuple[Real, Real]:
    """Use Faddeeva's function near 0 and its asymptotic series far out."""
    log_f, mean = np.empty_like(y), np.empty_like(y)
    far = np.hypot(y, gamma) > _FAR
    z = (y[~far] + 1j * gamma) / math.sqrt(2)
    w = special.wofz(z)
    log_f[~far] = np.log(w.real) - 0.5 * math.log(2 * math.pi)
    mean[~far] = math.sqrt(2) * (z * w).real / w.real
    log_f[far], mean[far] = _cauchy_far(y[far], gamma)
    return log_f, mean


def _cauchy_far(y: Real, gamma: float) -> tuple[Real, Real]:
    """Compute the leading terms, Cauchy's density and 2 y / (y^2 + gamma^2), times the series' correction."""
    size = np.hypot(y, gamma)
    # 1/z. The corrections are even in y, so a tiny y may be replaced by a larger one that does not underflow; and from
    # |z| = 1e8 on they are 1 to all digits.
    u = math.sqrt(2) / np.minimum(size, 1e8) * (np.maximum(y / size, 1e-100) - 1j * (gamma / size))
    even, odd, c, power = np.zeros_like(u), np.zeros_like(u), 1.0, np.ones_like(u)
    for k in range(12):
        odd += c * power * u
        c, power = c * (k + 0.5), power * u * u
        even += c * power
    ratio = even.imag / (0.5 * (u * u).imag)
    density = odd.imag / u.imag
    return Cauchy(gamma).log_density(y) + np.log(density), 2 * (y / size) / size * (ratio / density)


class _Table(NamedTuple):
    """log f and log(mean / y) as polynomials on intervals of a = y^2/2: of width 1 up to `linear`, then geometric."""

    coefficients: Real  # (degree + 1, 2, intervals)
    linear: int
    ratio: float  # width of the geometric intervals in log a
    nu: float

    def at(self, y: Real) -> tuple[Real, Real]:
        """Evaluate log f and the mean at y >= 0."""
        last = self.coefficients.shape[-1] - self.linear
        log_a = 2 * np.log(np.maximum(y, 1e-150)) - math.log(2)
        place = np.where(
            log_a < math.log(self.linear),
            np.exp(np.minimum(log_a, 50)),
            self.linear + (log_a - math.log(self.linear)) / self.ratio,
        )
        beyond = np.maximum(place - (self.linear + last), 0) * self.ratio  # in log a; both are pure powers there
        place = np.minimum(place, self.linear + last)
        index = np.minimum(place.astype(np.int64), self.linear + last - 1)
        x = 2 * (place - index) - 1
        log_f, log_mean = (_horner(self.coefficients[:, i], index, x) for i in (0, 1))
        half = np.exp(-beyond / 2)  # twice: its square would underflow before the mean does
        return log_f - (self.nu + 1) / 2 * beyond, y * half * np.exp(log_mean) * half


def _horner(coefficients: Real, index: Real, x: Real) -> Real:
    """Evaluate the polynomial of interval `index` at x in [-1, 1], by Horner's rule."""
    value = coefficients[-1][index]
    for c in coefficients[-2::-1]:
        value *= x
        value += c[index]
    return value


@lru_cache(maxsize=64)
def _table(nu: float, scale: float) -> _Table:
    """Tabulate both functions for one law.

    The sizes follow from where log f is singular: where its Gaussian and its power-law part cancel, at Im a = pi, for a
    up to about `linear`. Beyond, it is analytic for |Im log a| < pi/2. At the end both functions are powers to 1e-14.
    """
    linear = int(64 + 3 * (nu + 1) * math.log(2 + 1 / scale))
    end = max(1e14 * max(1, nu * scale**2) * (nu + 1) ** 2, 2.0 * linear)
    count = math.ceil(math.log(end / linear) / 0.25)
    ratio = math.log(end / linear) / count
    nodes = (chebyshev.chebpts1(_DEGREE + 1) + 1) / 2
    near = np.arange(linear)[:, None] + nodes
    far = linear * np.exp(ratio * (np.arange(count)[:, None] + nodes))
    parts = [np.stack(_mixture(a.ravel(), nu, scale)).reshape(2, -1, _DEGREE + 1) for a in (near, far)]
    values = np.concatenate(parts, axis=1)
    middle = values[
        ..., _DEGREE // 2, None
    ]  # subtracted first, so that the rounding of the powers is relative to the variation only
    to_powers = np.linalg.inv(np.vander(chebyshev.chebpts1(_DEGREE + 1), increasing=True))
    coefficients = np.moveaxis((values - middle) @ to_powers.T, -1, 0).copy()
    coefficients[0] = middle[..., 0]
    return _Table(coefficients, linear, ratio, nu)


def _mixture(a: Real, nu: float, scale: float) -> tuple[Real, Real]:
    """Compute log f and log(mean / y) at y = sqrt(2 a), by the trapezoidal rule over log l."""
    step = min(0.2, 0.7 / math.sqrt(nu + 1))
    reach = 80 / (nu + 1) + 12 / math.sqrt(nu + 1)  # to the left it falls like exp((nu + 1) t / 2), or as a Gaussian
    low, high = min(0, 2 * math.log(scale) - math.log(a.max() + 1)) - reach, math.log(2 + 160 / nu)
    t = np.arange(low, high, step)
    log_p = -np.logaddexp(0, 2 * math.log(scale) - t)
    log_prior = nu / 2 * (t - np.exp(t)) + nu / 2 * math.log(nu / 2) - math.lgamma(nu / 2) + math.log(step)
    weight, p = log_prior + 0.5 * log_p, np.exp(log_p)
    log_f, log_mean = np.empty_like(a), np.empty_like(a)
    for part in np.array_split(np.arange(len(a)), max(1, len(a) * len(t) // 2**20)):
        exponent = weight - a[part, None] * p
        top = exponent.max(axis=1, keepdims=True)
        np.exp(exponent - top, out=exponent)
        total = exponent.sum(axis=1)
        log_f[part] = top[:, 0] + np.log(total) - 0.5 * math.log(2 * math.pi)
        log_mean[part] = np.log(exponent @ p / total)
    return log_f, log_mean
