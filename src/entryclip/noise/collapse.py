"""Constants of lem:posterior_collapse: from which |y| on the posterior mean under heavy noise is negligible.

If |(log h)'(t)| <= C1/|t| and |(log h)''(t)| <= C2/t^2 for |t| >= T0 (eq:score_curvature), then for |y| >= y_1

    |E[x | y, H]| <= 3 C1 sigma_x^2 / |y|,

and thm:main (i) holds with a given epsilon from y* = max(y_1, 3 C1 sigma_x^2 / epsilon) on. y_1 is the smallest value
from which on M R(y) <= C1/|y|, with M a bound on the score and R(y) the bound of eq:R_def on P(|y - x| <= |y|/2 | y).

Two details differ from the text. There y_1 must also be at least T0 + 1, or the lower envelope in eq:denominator_lb is
used outside its range. And restricting x to |x| <= 1 there does not scale with the data: in the other form of R,
|x| <= sigma_x, y_1/sigma_x depends on the noise's scale over sigma_x only.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from .laws import Cauchy, Gaussian, Laplace, Law, StudentT, check_number


class TailConstants(NamedTuple):
    """The constants C1, C2 and T0 of eq:score_curvature."""

    c1: float
    c2: float
    t0: float


class Collapse(NamedTuple):
    """From |y| = `y1` on the heavy branch is at most `constant / |y|`, and from `y_star` on at most epsilon."""

    y1: float
    constant: float  # 3 C1 sigma_x^2
    y_star: float | None  # None without an epsilon


def tail_constants(heavy: Law) -> TailConstants:
    """Return the score and curvature constants of a heavy-tailed density: nu + 1, nu + 1 and scale sqrt(nu).

    >>> tail_constants(StudentT(3.0, scale=2.0))
    TailConstants(c1=4.0, c2=4.0, t0=3.4641016151377544)
    """
    if isinstance(heavy, Cauchy):
        heavy = StudentT(1.0, heavy.gamma)
    if not isinstance(heavy, StudentT):
        reasons = {Gaussian: "a Gaussian score grows with |t|", Laplace: "a Laplace score does not fall with |t|"}
        why = reasons.get(type(heavy), "its heavy part may")
        raise TypeError(f"only Cauchy and StudentT fulfil the score condition, got {heavy!r} ({why})")
    return TailConstants(heavy.nu + 1.0, heavy.nu + 1.0, heavy.scale * math.sqrt(heavy.nu))


def posterior_collapse(
    sigma_x: float, heavy: Cauchy | StudentT, epsilon: float | None = None, *, equivariant: bool = False
) -> Collapse:
    """Compute y_1 of lem:posterior_collapse and y* of thm:main (i).

    `equivariant=True` takes the form that scales with the data instead of the paper's.

    >>> [round(posterior_collapse(s, Cauchy(s)).y1 / s, 1) for s in (1.0, 0.01)]
    [11.6, 200.6]
    >>> [round(posterior_collapse(s, Cauchy(s), equivariant=True).y1 / s, 1) for s in (1.0, 0.01)]
    [11.6, 11.6]
    """
    check_number("sigma_x", sigma_x)
    if epsilon is not None:
        check_number("epsilon", epsilon)
    c1, _, t0 = tail_constants(heavy)
    window = sigma_x if equivariant else 1.0
    excess = _excess(sigma_x, heavy, window)
    y1 = _last_root(excess, start=max(2 * t0, t0 + window), falling=2 * sigma_x * math.sqrt(2 + 2 * c1))
    constant = 3 * c1 * sigma_x**2
    return Collapse(y1, constant, None if epsilon is None else max(y1, constant / epsilon))


def _excess(sigma_x: float, heavy: Cauchy | StudentT, window: float) -> Callable[[float], float]:
    """Return the function y -> log(M R(y) |y| / C1), which must not be above 0."""
    c1, c2, t0 = tail_constants(heavy)
    score = (c1 + c2) / t0  # the global bound M: Student's score is largest at T0, where it is (nu + 1)/(2 T0)
    log_top, log_t0 = float(heavy.log_density(0.0)), float(heavy.log_density(t0))

    def excess(y: float) -> float:
        log_k1 = max(log_top, log_t0 + c1 * math.log(2 * y / t0))
        log_r = math.log(y / (2 * window)) + log_k1 - log_t0 + c1 * math.log((y + window) / t0)
        log_r += (window / sigma_x) ** 2 / 2 - (y / sigma_x) ** 2 / 8
        return math.log(score / c1) + math.log(y) + log_r

    return excess


def _last_root(excess: Callable[[float], float], start: float, falling: float) -> float:
    """Find the smallest y >= start from which on `excess` is not positive; it is monotone from `falling` on."""
    high = max(start, falling)
    while excess(high) > 0:
        high *= 2
    grid = np.geomspace(start, high, 2000) if high > start else np.array([start])
    above = np.flatnonzero(np.array([excess(y) for y in grid]) > 0)
    if not len(above):
        return start
    return float(brentq(excess, grid[above[-1]], grid[above[-1] + 1], xtol=1e-14 * high))
