"""The law of the localization ratio R under Gaussian noise, given the directions u and v.

The norm of E cancels in R = M^2 / S^2, where M is the largest of the terms |u_i v_j E_ij| and S is their sum, a
standard normal number. The weights |u_i v_j| are all that matters, and their logarithms are sums: their histogram is a
convolution of two short ones, so nothing of the size of the matrix is ever made.

    P(M <= t)      = prod_ij erf(t / (sqrt 2 |u_i v_j|))
    P(R > x | M=t) = P(|t + tau(t) Z| < t / sqrt x)

The second line is where M and S depend on each other: given the largest term, the sum is that term plus the others,
which are normal numbers cut off at t; tau(t)^2 is their variance. Taking M and S as independent instead is off by 4 %
in the tail at 32 x 32 and by more than a factor of 2 for localized u, v.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from scipy import optimize, special

_STEP = 1 / 64  # bins of log|u| and log|v|: an error of 4e-5, as it is of second order
_REACH = 12.0  # weights below e^-12 of the largest are never the largest term; they count in the sum alone
_LEVELS = (np.arange(128) + 0.5) / 128  # of the distribution of M
_BEYOND = 7.5  # P(|Z| > 7.5) is 6e-14: none of 10^9 entries
_FEW = 8  # effective entries below which the sum of the others is not normal: Monte Carlo
_EXACT = 4096  # the largest weights, drawn one by one in Monte Carlo; the sum of the others is one normal number


class Null(ABC):
    """A law of R: probabilities, quantiles, and the band in which the median of several draws lies."""

    @abstractmethod
    def above(self, ratio: np.ndarray) -> np.ndarray:
        """P(R >= ratio): small where one entry stands out."""

    @abstractmethod
    def below(self, ratio: np.ndarray) -> np.ndarray:
        """P(R <= ratio): small where E is aligned with u v^T."""

    @abstractmethod
    def quantile(self, p: float) -> float:
        """The ratio below which R lies with probability p."""

    @cached_property
    def median(self) -> float:
        return self.quantile(0.5)

    def band(self, draws: int = 1, level: float = 0.95) -> tuple[float, float]:
        """Where the median of R-hat over `draws` independent matrices lies with probability `level`.

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
        """P(the median of R over `draws` matrices <= median); of an even count, the mean of the middle two."""

    @abstractmethod
    def median_quantile(self, p: float, draws: int) -> float:
        """Its inverse."""


@dataclass(frozen=True)
class ClosedForm(Null):
    """By quadrature over the distribution of the largest term: its values at even levels, and tau at each."""

    largest: np.ndarray = field(repr=False)
    rest: np.ndarray = field(repr=False)

    def above(self, ratio: np.ndarray) -> np.ndarray:
        edge, t, tau = self._edges(ratio)
        small = 2 * edge / tau * _normal_density(t / tau)  # the difference below would be one of equal numbers
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
        lower = np.geomspace(min(1e-6 * self.median, median / 2), median, 200)  # where the lower of the two may lie
        share = np.diff(special.betainc(half, half + 1, self.below(lower)))
        lower = np.sqrt(lower[1:] * lower[:-1])
        both = 1 - (self.above(2 * median - lower) / self.above(lower)) ** half  # the upper one is close enough
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
    """By drawing: ratios in order. A probability is at least 1 / (draws + 1)."""

    ratios: np.ndarray = field(repr=False)
    known: dict[int, np.ndarray] = field(default_factory=dict, repr=False, compare=False)  # medians of so many draws

    def above(self, ratio: np.ndarray) -> np.ndarray:
        below = np.searchsorted(self.ratios, np.asarray(ratio) * (1 - 1e-12), side="left")
        return (self.ratios.size - below + 1) / (self.ratios.size + 1)

    def below(self, ratio: np.ndarray) -> np.ndarray:
        up_to = np.searchsorted(self.ratios, np.asarray(ratio) * (1 + 1e-12), side="right")
        return (up_to + 1) / (self.ratios.size + 1)

    def quantile(self, p: float) -> float:
        return float(np.quantile(self.ratios, p))

    def median_below(self, median: float, draws: int) -> float:
        return float(np.mean(self._medians(draws) <= median * (1 + 1e-12)))

    def median_quantile(self, p: float, draws: int) -> float:
        return float(np.quantile(self._medians(draws), p))

    def _medians(self, draws: int) -> np.ndarray:
        """Medians of groups drawn anew from the ratios, always the same ones."""
        if draws not in self.known:
            groups = max(2_000_000 // draws, 200)
            self.known[draws] = np.median(np.random.default_rng(0).choice(self.ratios, (groups, draws)), axis=-1)
        return self.known[draws]


def gaussian_null(
    u: np.ndarray, v: np.ndarray, generator: np.random.Generator | None = None, *, draws: int | None = None
) -> Null:
    """The law of R for these directions: in closed form, or by drawing where few entries carry all the weight.

    `draws` is how often to draw then (None: as often as a second allows).

    >>> gaussian_null(np.ones(50) / 50**0.5, np.ones(40) / 40**0.5), gaussian_null(np.eye(9)[0], np.eye(9)[1])
    (ClosedForm(), MonteCarlo())
    """
    if participation(u) * participation(v) >= _FEW:
        return closed_form(u, v)
    return monte_carlo(u, v, draws, generator or np.random.default_rng(0))


def participation(u: np.ndarray) -> float:
    """Over how many entries a unit vector is spread: from 1 to its length.

    >>> participation(np.array([0.5, 0.5, 0.5, -0.5])), participation(np.array([0.0, 1.0]))
    (4.0, 1.0)
    """
    return float(1 / np.sum(np.asarray(u, float) ** 4))


def closed_form(u: np.ndarray, v: np.ndarray) -> ClosedForm:
    """Quadrature nodes from the histogram of the weights |u_i v_j|."""
    t, weight, count = _quantiles_of_largest(*_weights(u, v))
    t = t[:, None]
    a = t / weight
    mass, density = _erf(a / math.sqrt(2)), 2 * _normal_density(a)
    lost = a * density / mass  # how much of its variance a normal number loses when cut off at a
    where = count * density / mass / weight  # how likely the largest term is one of this weight
    where /= where.sum(-1, keepdims=True)
    variance = 1 - (weight**2 * lost) @ count - (where * weight**2 * (1 - lost)).sum(-1)
    return ClosedForm(t[:, 0], np.sqrt(np.clip(variance, 1e-12, None)))


def _quantiles_of_largest(weight: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """M at the levels: on a coarse grid of t first, then on a fine one where its distribution function rises.

    And the weights that have a part in it: a term of a smaller one would have to be _BEYOND standard deviations out.
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
    """Ratios of Gaussian matrices (None: as many as a second allows, 20 000 to 200 000), from up to 4096 weights."""
    weight = _largest_weights(u, v)
    draws = draws or min(max(5 * 10**7 // weight.size, 20_000), 200_000)
    spread = math.sqrt(max(1 - float(weight @ weight), 0.0))
    spread = spread if spread > 1e-7 else 0.0
    ratios = []
    at_once = max(2**17 // weight.size, 1)  # what stays in the cache
    for start in range(0, draws, at_once):
        terms = weight * generator.standard_normal((min(at_once, draws - start), weight.size))
        total = terms.sum(-1) + spread * generator.standard_normal(len(terms))
        ratios.append((np.abs(terms).max(-1) / total) ** 2)
    return MonteCarlo(np.sort(np.concatenate(ratios)))


def _weights(u: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values of |u_i v_j|, largest first and binned, and how many there are of each."""
    (top_u, count_u), (top_v, count_v) = _histogram(u), _histogram(v)
    size = len(count_u)
    count = np.rint(np.fft.irfft(np.fft.rfft(count_u, 2 * size) * np.fft.rfft(count_v, 2 * size), 2 * size)[:size])
    bins = np.flatnonzero(count > 0)
    return np.exp(top_u + top_v - _STEP * bins), count[bins]


def _histogram(u: np.ndarray) -> tuple[float, np.ndarray]:
    log = np.log(np.abs(u[u != 0]))
    place = np.rint((log.max() - log) / _STEP).astype(int)
    size = int(_REACH / _STEP) + 1
    return float(log.max()), np.bincount(place[place < size], minlength=size)


def _largest_weights(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The 4096 largest |u_i v_j|: one is among them only if the product of its ranks is at most that."""
    a, b = np.sort(np.abs(u))[::-1], np.sort(np.abs(v))[::-1]
    products = np.concatenate([a[i] * b[: _EXACT // (i + 1)] for i in range(min(a.size, _EXACT))])
    products = np.sort(products)[::-1][:_EXACT]
    return products[products > 0]


def _erf(x: np.ndarray) -> np.ndarray:
    """torch's: six times as fast as scipy's."""
    return torch.erf(torch.from_numpy(x)).numpy()


def _normal_density(x: np.ndarray) -> np.ndarray:
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
