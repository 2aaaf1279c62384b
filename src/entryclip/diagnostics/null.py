"""The law of the localization ratio R under Gaussian noise, given the directions u and v.

The norm of E cancels in R = M^2 / S^2, where M is the largest of the terms |u_i v_j E_ij| and S is their sum, a
standard normal number. Only the weights |u_i v_j| matter, and their logarithms are sums, so their histogram is a
convolution of two short ones: no array of the size of the matrix is made.

    P(M <= t)      = prod_ij erf(t / (sqrt 2 |u_i v_j|))
    P(R > x | M=t) = P(|t + tau(t) Z| < t / sqrt x)

The second line accounts for the dependence of M and S: given the largest term, the sum is that term plus the others,
which are normal numbers cut off at t; tau(t)^2 is the variance of their sum. Taking M and S as independent instead is
off by 4 % in the tail at 32 x 32 and by more than a factor of 2 for localized u, v.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from scipy import optimize, special

_STEP = 1 / 64  # width of the bins of log|u| and log|v|: its effect is of second order, 4e-5
_REACH = 12.0  # a weight below e^-12 of the largest is never that of the largest term; it only adds to the sum
_LEVELS = (np.arange(128) + 0.5) / 128  # probabilities at which quantiles of M are taken
_BEYOND = 7.5  # P(|Z| > 7.5) is 6e-14: none of 10^9 entries
_FEW = 8  # effective entries below which the sum of the others is not normal, and Monte Carlo is used
_EXACT = 4096  # largest weights whose terms Monte Carlo draws one by one; the sum of the others is one normal number


class Null(ABC):
    """The distribution of R under Gaussian noise: probabilities, quantiles, and bands for the median of draws."""

    @abstractmethod
    def above(self, ratio: np.ndarray) -> np.ndarray:
        """Return P(R >= ratio): small where one entry stands out."""

    @abstractmethod
    def below(self, ratio: np.ndarray) -> np.ndarray:
        """Return P(R <= ratio): small where E is aligned with u v^T."""

    @abstractmethod
    def quantile(self, p: float) -> float:
        """Return the ratio below which R lies with probability p."""

    @cached_property
    def median(self) -> float:
        """The median of R."""
        return self.quantile(0.5)

    def band(self, draws: int = 1, level: float = 0.95) -> tuple[float, float]:
        """Return the interval in which the median of R-hat over `draws` matrices lies with probability `level`.

        >>> null = closed_form(np.ones(64) / 8, np.ones(64) / 8)
        >>> [round(end, 2) for end in null.band(64)]
        [0.59, 1.84]
        """
        if draws < 1 or not 0 < level < 1:
            raise ValueError(f"draws must be >= 1 and level in (0, 1), got {draws} and {level}")
        low, high = (self.median_quantile(p, draws) for p in ((1 - level) / 2, (1 + level) / 2))
        return low / self.median, high / self.median

    @abstractmethod
    def median_below(self, median: float, draws: int) -> float:
        """Return P(the median of R over `draws` matrices <= median); for an even count, the mean of the middle two."""

    @abstractmethod
    def median_quantile(self, p: float, draws: int) -> float:
        """Return the value below which the median of R over `draws` matrices lies with probability p."""


@dataclass(frozen=True)
class ClosedForm(Null):
    """The distribution of R by quadrature over the largest term M."""

    largest: np.ndarray = field(repr=False)  # quantiles of M at evenly spaced probabilities
    rest: np.ndarray = field(repr=False)  # tau at each: the standard deviation of the sum of the other terms

    def above(self, ratio: np.ndarray) -> np.ndarray:
        edge, t, tau = self._edges(ratio)
        small = 2 * edge / tau * _normal_density(t / tau)  # the difference in the next line would cancel
        inside = special.ndtr((edge - t) / tau) - special.ndtr((-edge - t) / tau)
        return np.where(edge < 1e-5 * tau, small, inside).mean(-1)

    def below(self, ratio: np.ndarray) -> np.ndarray:
        edge, t, tau = self._edges(ratio)
        return (special.ndtr((t - edge) / tau) + special.ndtr((-edge - t) / tau)).mean(-1)

    def quantile(self, p: float) -> float:
        def excess(log_ratio: float) -> float:
            return float(self.below(np.exp(log_ratio))) - p

        middle = 2 * math.log(float(np.median(self.largest)))
        return math.exp(optimize.brentq(excess, middle - 100, middle + 200, xtol=1e-10))

    def median_below(self, median: float, draws: int) -> float:
        half = draws // 2
        if draws % 2:
            return float(special.betainc(half + 1, half + 1, self.below(np.asarray(median))))
        lower = np.geomspace(min(1e-6 * self.median, median / 2), median, 200)  # values of the lower of the two
        share = np.diff(special.betainc(half, half + 1, self.below(lower)))
        lower = np.sqrt(lower[1:] * lower[:-1])
        both = 1 - (self.above(2 * median - lower) / self.above(lower)) ** half  # P(the upper one is close enough)
        return float(share @ both)

    def median_quantile(self, p: float, draws: int) -> float:
        half = draws // 2
        sides = [(half + 1, half + 1)] if draws % 2 else [(half, half + 1), (half + 1, half)]
        ends = [self.quantile(float(special.betaincinv(*side, p))) for side in sides]
        if draws % 2:
            return ends[0]
        low, high = math.log(ends[0]) - 0.01, math.log(ends[1]) + 0.01  # it lies between those of the middle two
        found = optimize.brentq(lambda x: self.median_below(math.exp(x), draws) - p, low, high, xtol=1e-4)
        return math.exp(found)

    def _edges(self, ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        with np.errstate(divide="ignore"):
            return self.largest / np.sqrt(np.asarray(ratio, float))[..., None], self.largest, self.rest


@dataclass(frozen=True)
class MonteCarlo(Null):
    """The distribution of R by Monte Carlo. Probabilities are never below 1 / (draws + 1)."""

    ratios: np.ndarray = field(repr=False)  # drawn values of R, sorted
    _medians: dict[int, np.ndarray] = field(default_factory=dict, repr=False, compare=False)  # by count of draws

    def above(self, ratio: np.ndarray) -> np.ndarray:
        below = np.searchsorted(self.ratios, np.asarray(ratio) * (1 - 1e-12), side="left")
        return (self.ratios.size - below + 1) / (self.ratios.size + 1)

    def below(self, ratio: np.ndarray) -> np.ndarray:
        up_to = np.searchsorted(self.ratios, np.asarray(ratio) * (1 + 1e-12), side="right")
        return (up_to + 1) / (self.ratios.size + 1)

    def quantile(self, p: float) -> float:
        return float(np.quantile(self.ratios, p))

    def median_below(self, median: float, draws: int) -> float:
        return float(np.mean(self._medians_of(draws) <= median * (1 + 1e-12)))

    def median_quantile(self, p: float, draws: int) -> float:
        return float(np.quantile(self._medians_of(draws), p))

    def _medians_of(self, draws: int) -> np.ndarray:
        """Return medians of groups of `draws` ratios, resampled from the drawn ones with a fixed seed."""
        if draws not in self._medians:
            groups = max(2_000_000 // draws, 200)
            self._medians[draws] = np.median(np.random.default_rng(0).choice(self.ratios, (groups, draws)), axis=-1)
        return self._medians[draws]


def gaussian_null(
    u: np.ndarray, v: np.ndarray, generator: np.random.Generator | None = None, *, draws: int | None = None
) -> Null:
    """Return the law of R for the unit vectors u, (m,), and v, (n,).

    It is in closed form, or by Monte Carlo where few entries carry all the weight; `draws` is the number of draws then
    (None: as many as a second allows).

    >>> gaussian_null(np.ones(50) / 50**0.5, np.ones(40) / 40**0.5), gaussian_null(np.eye(9)[0], np.eye(9)[1])
    (ClosedForm(), MonteCarlo())
    """
    if participation(u) * participation(v) >= _FEW:
        return closed_form(u, v)
    return monte_carlo(u, v, draws, generator or np.random.default_rng(0))


def participation(u: np.ndarray) -> float:
    """Return the number of entries over which a unit vector is spread, from 1 to its length: 1 / sum u_i^4.

    >>> participation(np.array([0.5, 0.5, 0.5, -0.5])), participation(np.array([0.0, 1.0]))
    (4.0, 1.0)
    """
    return float(1 / np.sum(np.asarray(u, float) ** 4))


def closed_form(u: np.ndarray, v: np.ndarray) -> ClosedForm:
    """Compute the quadrature nodes of the closed form from the histogram of the weights |u_i v_j|."""
    t, weight, count = _quantiles_of_largest(*_weights(u, v))
    t = t[:, None]
    a = t / weight
    mass, density = _erf(a / math.sqrt(2)), 2 * _normal_density(a)
    lost = a * density / mass  # the share of its variance that a normal number loses when cut off at a
    where = count * density / mass / weight  # the probability that the largest term has this weight
    where /= where.sum(-1, keepdims=True)
    variance = 1 - (weight**2 * lost) @ count - (where * weight**2 * (1 - lost)).sum(-1)
    return ClosedForm(t[:, 0], np.sqrt(np.clip(variance, 1e-12, None)))


def _quantiles_of_largest(weight: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the quantiles of M at `_LEVELS`, and the weights and counts of the terms that can be the largest.

    The distribution function is evaluated on a coarse grid of t, then on a fine one where it rises. The term of a
    weight that is left out would have to be _BEYOND standard deviations out.
    """
    ends = np.array([1e-3, 10.0]) * weight[0]
    for size in (64, 160):
        near = weight > ends[0] / _BEYOND
        weight, count = weight[near], count[near]
        grid = np.geomspace(ends[0], ends[1], size)
        log = np.log(_erf(grid[:, None] / weight / math.sqrt(2))) @ count
        rises = np.flatnonzero((log > -30) & (log < -1e-7))
        ends = grid[[max(rises[0] - 1, 0), min(rises[-1] + 1, size - 1)]]
    gumbel = -np.log(-log[rises])  # nearly a straight line in log t
    return np.exp(np.interp(-np.log(-np.log(_LEVELS)), gumbel, np.log(grid[rises]))), weight, count


def monte_carlo(u: np.ndarray, v: np.ndarray, draws: int | None, generator: np.random.Generator) -> MonteCarlo:
    """Draw ratios R of Gaussian matrices (None: as many as a second allows, 20 000 to 200 000)."""
    weight = _largest_weights(u, v)
    draws = draws or min(max(5 * 10**7 // weight.size, 20_000), 200_000)
    spread = math.sqrt(max(1 - float(weight @ weight), 0.0))
    spread = spread if spread > 1e-7 else 0.0
    ratios = []
    at_once = max(2**17 // weight.size, 1)  # draws whose terms stay in the cache
    for start in range(0, draws, at_once):
        terms = weight * generator.standard_normal((min(at_once, draws - start), weight.size))
        total = terms.sum(-1) + spread * generator.standard_normal(len(terms))
        ratios.append((np.abs(terms).max(-1) / total) ** 2)
    return MonteCarlo(np.sort(np.concatenate(ratios)))


def _weights(u: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the binned values of |u_i v_j|, largest first, and the count of each."""
    (top_u, count_u), (top_v, count_v) = _histogram(u), _histogram(v)
    size = len(count_u)
    count = np.rint(np.fft.irfft(np.fft.rfft(count_u, 2 * size) * np.fft.rfft(count_v, 2 * size), 2 * size)[:size])
    bins = np.flatnonzero(count > 0)
    return np.exp(top_u + top_v - _STEP * bins), count[bins]


def _histogram(u: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the largest log|u_i|, and the counts of log|u_i| in bins downwards from it."""
    log = np.log(np.abs(u[u != 0]))
    place = np.rint((log.max() - log) / _STEP).astype(int)
    size = int(_REACH / _STEP) + 1
    return float(log.max()), np.bincount(place[place < size], minlength=size)


def _largest_weights(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the 4096 largest |u_i v_j|; a product is among them only if that of its ranks is at most 4096."""
    a, b = np.sort(np.abs(u))[::-1], np.sort(np.abs(v))[::-1]
    products = np.concatenate([a[i] * b[: _EXACT // (i + 1)] for i in range(min(a.size, _EXACT))])
    products = np.sort(products)[::-1][:_EXACT]
    return products[products > 0]


def _erf(x: np.ndarray) -> np.ndarray:
    """Return the error function by torch, which is six times as fast as scipy."""
    return torch.erf(torch.from_numpy(x)).numpy()


def _normal_density(x: np.ndarray) -> np.ndarray:
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
