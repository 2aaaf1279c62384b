"""Fit (1 - alpha) N(0, sigma^2) + alpha gamma t_nu to the entries of a matrix, by maximum likelihood on a histogram.

The likelihood is that of the counts on a logarithmic grid, with exact probabilities of the bins, so that binning costs
hardly any information; ten million entries become a few hundred numbers, and parts of the data can be added. scipy's
least squares minimize the deviance, a sum of squared residuals; its curvature gives the intervals.

Far out P(|x| > t) is proportional to alpha gamma^nu, so that product is fixed by the count of large entries, while
alpha and gamma apart are weakly identified where gamma is near sigma. Hence the product comes first. And if x is a
gradient, signal plus noise, then sigma^2 is the sum of both variances: one matrix cannot tell them apart.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

from ..arrays import Array, is_number
from ..quantiles.histogram import Histogram
from .contamination import Contamination
from .laws import Cauchy, Gaussian, StudentT

_EVIDENCE = 13.8  # gain in deviance that counts as contamination: chance 1 in 1000 for chi^2 with 2 degrees of freedom
_SPAN = 1.5  # an interval wider than this factor does not identify its parameter


class Interval(NamedTuple):
    """An estimate with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class Fit:
    """A fitted noise model: its parameters with 95 % intervals. Printing it shows all of them.

    The intervals are symmetric on the scale of the logarithm (logit for alpha), from the curvature of the likelihood.
    The one of `alpha_gamma` has its nominal coverage; those of alpha and gamma are too narrow where the two are not
    `identified`.
    """

    alpha_gamma: Interval  # alpha gamma^nu: alpha gamma for Cauchy noise
    sigma: Interval
    alpha: Interval
    gamma: Interval
    nu: Interval
    contaminated: bool  # whether the data show a heavy part at all
    count: int  # number of non-zero entries
    zeros: int  # number of zeros, which are left out
    deviance: float  # deviance over its degrees of freedom: about 1 where the model is right

    @property
    def identified(self) -> bool:
        """True where alpha and gamma can be told apart: the ends of each interval lie within a factor of 1.5."""
        return self.contaminated and all(each.high <= _SPAN * each.low for each in (self.alpha, self.gamma))

    @property
    def noise(self) -> Contamination | Gaussian:
        """The fitted model, to draw from or to pass to `posterior_mean`."""
        if not self.contaminated:
            return Gaussian(self.sigma.value)
        nu, gamma = self.nu.value, self.gamma.value
        return Contamination(self.alpha.value, self.sigma.value, Cauchy(gamma) if nu == 1 else StudentT(nu, gamma))

    def __str__(self) -> str:
        if not self.contaminated:
            return f"no heavy part found in {self.count} entries\nsigma {self.sigma}"
        fixed = self.nu.low == self.nu.high
        power = "" if fixed and self.nu.value == 1 else f"^{self.nu.value:.3g}"
        lines = [f"alpha*gamma{power} {self.alpha_gamma}", f"sigma {self.sigma}"]
        lines += [
            f"alpha {self.alpha}, gamma {self.gamma}",
            f"nu {self.nu.value:g} (given)" if fixed else f"nu {self.nu}",
        ]
        if not self.identified:
            lines.append("alpha and gamma are not separately identified: rely on their product")
        return "\n".join(lines)


def fit(x: Array | Histogram, *, nu: float | None = 1.0) -> Fit:
    """Fit contaminated noise to all entries of an array, or to a `Histogram`, which adds over steps and processes.

    The heavy part is Cauchy by default and Student's t with another `nu`; with `nu=None` the tail index is fitted too.
    Zeros are left out: rows without a gradient say nothing about the noise.

    >>> import torch
    >>> x = Contamination(0.05, 1.0, Cauchy(3.0)).sample((768, 768), torch.Generator().manual_seed(0))
    >>> print(fit(x))
    alpha*gamma 0.148 [0.144, 0.152]
    sigma 0.999 [0.997, 1]
    alpha 0.0511 [0.0487, 0.0536], gamma 2.89 [2.71, 3.09]
    nu 1 (given)
    """
    if nu is not None and not (is_number(nu) and 0 < nu < math.inf):
        raise ValueError(f"nu must be a finite number above 0, or None to fit it, got {nu!r}")
    histogram = x if isinstance(x, Histogram) else Histogram.of(x)
    data = _Counts.of(histogram)
    plain, found = optimize.least_squares(data.residuals, [data.scale]), _best(data, nu)
    if 2 * (plain.cost - found.cost) > _EVIDENCE:
        return _summary(histogram, data, found, nu)
    return _gaussian(histogram, data, plain)


class _Counts(NamedTuple):
    """Counts between edges from 0 to inf; all entries below a thousandth of the median share one bin."""

    edges: np.ndarray
    counts: np.ndarray
    scale: float  # log of sigma, from the median

    @classmethod
    def of(cls, histogram: Histogram) -> "_Counts":
        """Merge the lowest bins, and estimate sigma from the median."""
        low, high, count = histogram.occupied()
        if count.sum() < 100:
            raise ValueError(f"a fit needs at least 100 non-zero entries, got {int(count.sum())}")
        median = high[np.searchsorted(np.cumsum(count), count.sum() / 2)]
        lowest = np.searchsorted(low, 1e-3 * median)
        edges = np.concatenate([[0.0], np.unique(np.concatenate([low[lowest:], high[lowest:]])), [math.inf]])
        counts = np.zeros(len(edges) - 1)
        counts[np.searchsorted(edges, low[lowest:])] = count[lowest:]
        counts[0] += count[:lowest].sum()
        return cls(edges, counts, math.log(median / 0.6745))

    def residuals(self, theta: list[float] | np.ndarray) -> np.ndarray:
        """Compute the signed root of each bin's deviance; theta = log sigma[, logit alpha, log gamma, log nu]."""
        tail = special.erfc(self.edges * (math.exp(-theta[0]) / math.sqrt(2)))
        if len(theta) > 1:
            alpha, scaled = special.expit(theta[1]), self.edges * math.exp(-theta[2])
            nu = math.exp(theta[3])
            heavy = 2 / math.pi * np.arctan2(1, scaled) if nu == 1 else 2 * special.stdtr(nu, -scaled)
            tail = (1 - alpha) * tail + alpha * heavy
        expected = self.counts.sum() * np.maximum(tail[:-1] - tail[1:], 1e-300)
        excess = special.xlogy(self.counts, self.counts / expected) - (self.counts - expected)
        return np.sign(self.counts - expected) * np.sqrt(2 * np.maximum(excess, 0))


def _best(data: _Counts, nu: float | None) -> optimize.OptimizeResult:
    """Run least squares from the two best points of a coarse grid, and return the better result."""
    fixed = [] if nu is None else [math.log(nu)]

    def residuals(theta: np.ndarray | list[float]) -> np.ndarray:
        return data.residuals([*theta, *fixed])

    grid = [
        [data.scale + s, special.logit(alpha), data.scale + g, *([] if fixed else [0.7])]
        for s in (0.0, -0.7)
        for alpha in (0.002, 0.02, 0.1, 0.4, 0.9)
        for g in (-1.5, -0.4, 1.0, 3.0, 6.0)
    ]
    starts = sorted(grid, key=lambda theta: float((residuals(theta) ** 2).sum()))[:2]
    wide = np.array([12.0, 30.0, 40.0, *([] if fixed else [4.0])])
    centre = np.array([data.scale, 0.0, data.scale, *([] if fixed else [0.7])])
    box = (centre - wide, centre + wide)
    results = [optimize.least_squares(residuals, start, bounds=box, xtol=1e-7, ftol=1e-9) for start in starts]
    return min(results, key=lambda result: float(result.cost))


def _summary(histogram: Histogram, data: _Counts, found: optimize.OptimizeResult, nu: float | None) -> Fit:
    """Turn the fitted parameters and the curvature at them into estimates with intervals."""
    theta, covariance = found.x, np.linalg.pinv(found.jac.T @ found.jac, rcond=1e-14, hermitian=True)
    error = 1.96 * np.sqrt(np.maximum(np.diag(covariance), 0))
    sigma, gamma = (_interval(math.exp, theta[i], error[i]) for i in (0, 2))
    alpha = _interval(special.expit, theta[1], error[1])
    fitted = Interval(nu, nu, nu) if nu is not None else _interval(math.exp, theta[3], error[3])
    if not _needs_bulk(data, found, [] if nu is None else [math.log(nu)]):
        alpha, sigma = alpha._replace(high=1.0), sigma._replace(low=0.0)
    # log(alpha gamma^nu): the slope of log alpha in logit alpha is 1 - alpha
    slope = np.array([0.0, 1 - alpha.value, fitted.value, *([] if nu is not None else [fitted.value * theta[2]])])
    centre = math.log(alpha.value) + fitted.value * theta[2]
    product = _interval(math.exp, centre, 1.96 * math.sqrt(max(float(slope @ covariance @ slope), 0)))
    spare = max(len(data.counts) - 1 - len(theta), 1)
    nonzero = histogram.count - histogram.zeros
    return Fit(product, sigma, alpha, gamma, fitted, True, nonzero, histogram.zeros, float(2 * found.cost / spare))


def _gaussian(histogram: Histogram, data: _Counts, plain: optimize.OptimizeResult) -> Fit:
    """Summarize a fit without a heavy part: the standard error of log sigma is 1/sqrt(2n)."""
    nonzero = histogram.count - histogram.zeros
    sigma = _interval(math.exp, float(plain.x[0]), 1.96 / math.sqrt(2 * nonzero))
    none, unknown = (
        Interval(0.0, 0.0, 1.0),
        Interval(0.0, 0.0, math.inf),
    )  # a part that the data do not show has no scale
    spare = max(len(data.counts) - 2, 1)
    return Fit(unknown, sigma, none, unknown, unknown, False, nonzero, histogram.zeros, float(2 * plain.cost / spare))


def _needs_bulk(data: _Counts, found: optimize.OptimizeResult, fixed: list[float]) -> bool:
    """Tell whether the data show a Gaussian part beside the heavy one."""
    alone = optimize.least_squares(lambda rest: data.residuals([0.0, math.inf, *rest, *fixed]), found.x[2:])
    return bool(2 * (alone.cost - found.cost) > _EVIDENCE)


def _interval(back: Callable[[float], float], centre: float, error: float) -> Interval:
    """Map an estimate and its error from the scale of the fit back to the parameter's own, by `back`."""
    return Interval(*(float(back(min(centre + shift, 700))) for shift in (0.0, -error, error)))
