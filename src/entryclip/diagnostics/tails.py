"""The tail index of |x|: a Hill plot, an estimate with an interval, and a verdict that may be "undecided".

With the largest k + 1 magnitudes X_1 >= ... >= X_(k+1), M_1 the mean of the log excesses log X_i - log X_(k+1), i <= k,
and M_2 the mean of their squares,

    Hill (1975)                       gamma = M_1, index 1/gamma
    moment (Dekkers et al. 1989)      gamma = M_1 + 1 - 1 / (2 (1 - M_1^2 / M_2))

Both tend to 1/index if P(|x| > t) falls like t^-index. Hill's is positive for every sample, also a Gaussian one; the
moment estimator tends to 0 or below without a power law. For a power law their difference is asymptotically normal with
variance 1/k, whatever the index: the verdict rests on that. It is tested at the largest k for which the excesses follow
the generalized Pareto law of the moment estimator, where there are most data, and at smaller k, where the bulk of the
distribution has no part.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import torch
from scipy import special

from ..arrays import Array, check_floating, widen

_POINTS = 40  # points of the Hill plot, evenly spaced in log k
_FIRST = 30  # the smallest k of the Hill plot
_ACCEPTED = 1.0  # sqrt(k) times the KS distance, about the 10 % point for a fitted exponential law (Lilliefors 1969)
_ENOUGH = 100  # the least k for the estimate
_TELLING = 300  # the least k at which Hill's and the moment estimator can tell index 4 from an exponential tail
_NEAR = 1 / 6  # share of the largest k up to which evidence is looked at, also where a power law was rejected before
_TAIL = 0.75  # sqrt(k) times the KS distance from a generalized Pareto law below which the largest k are one tail


class TailVerdict(StrEnum):
    """Whether the tail of a distribution is a power law."""

    POWER_LAW = "power law"
    NOT_POWER_LAW = "not a power law"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class TailIndex:
    """The estimated index of a tail and a verdict on it; `print` shows them in one line."""

    verdict: TailVerdict
    reason: str
    index: float  # Hill's estimate at k; inf where the largest entries are all equal
    interval: tuple[float, float]  # spans the intervals at k, k/2, k/4 and k/8: a drift of the Hill plot makes it wide
    k: int  # the number of entries the estimate rests on
    moment: float  # the moment estimator's gamma at k: 1/index for a power law, 0 or below for none
    moment_interval: tuple[float, float]
    distance: float  # Kolmogorov-Smirnov distance of the log excesses at k from an exponential law
    plot: "HillPlot" = field(repr=False)

    def __str__(self) -> str:
        low, high = self.interval
        numbers = f"index {self.index:.2g} [{low:.2g}, {high:.2g}]"
        return (
            f"{self.verdict}, {numbers}" if self.verdict == TailVerdict.POWER_LAW else f"{self.verdict}: {self.reason}"
        )


@dataclass(frozen=True)
class HillPlot:
    """Hill's and the moment estimator over k, with the distance of the largest k entries from a power law."""

    k: np.ndarray
    hill: np.ndarray  # gamma; the index is 1/hill
    moment: np.ndarray  # gamma
    distance: np.ndarray  # Kolmogorov-Smirnov distance from a power law
    pareto_distance: np.ndarray  # the same from a generalized Pareto law, which fits every tail far enough out

    def evidence(self) -> np.ndarray:
        """Return the log likelihood ratio at each k of a power law (> 0) against a tail without one (< 0)."""
        root = np.sqrt(self.k)
        against_none = np.clip(root * self.moment, 0, None)
        against_power_law = np.clip(root * (self.hill - self.moment), 0, None)
        return (against_none**2 - against_power_law**2) / 2


def tail_index(x: Array, *, cap: float = 0.01, level: float = 0.95) -> TailIndex:
    """Estimate the tail index of the non-zero |x|, all entries of `x` together.

    The index is Hill's estimate at the k with the smallest Kolmogorov-Smirnov distance, among those where a power
    law is not rejected, up to a share `cap` of the entries; `level` is that of the interval. A fixed share would be
    wrong for mixtures: where 5 % of the entries are heavy-tailed, the largest 10 % are mostly the bulk. The verdict
    compares the moment estimator with Hill's: it needs about 300 entries in the tail, and it cannot tell a lognormal
    tail from a power law.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(768, 768, generator=generator)
    >>> print(tail_index(x))
    not a power law: the moment estimator is -0.08, Hill's 0.11, at k = 5898
    >>> print(tail_index(x / torch.randn(768, 768, generator=generator)))
    power law, index 1 [0.95, 1.1]
    """
    return tail_of_largest(*_largest(x, cap), level=level)


def tail_of_largest(top: np.ndarray, count: int, *, level: float = 0.95) -> TailIndex:
    """Estimate the tail index from the largest magnitudes, largest first, of `count` non-zero ones.

    >>> x = np.sort(np.random.default_rng(0).pareto(2.0, 100_000) + 1)[::-1]
    >>> print(tail_of_largest(x[:1001], 100_000))
    power law, index 1.9 [1.6, 2.7]
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    if not _FIRST < len(top) <= count:
        raise ValueError(f"a tail needs more than {_FIRST} of the entries, got {len(top)} of {count}")
    log = np.log(top)
    if log[0] - log[_FIRST] < 1e-12:
        return _tied(log)
    plot = _plot(log)
    fits = np.flatnonzero((plot.distance * np.sqrt(plot.k) < _ACCEPTED) & (plot.k >= min(_ENOUGH, plot.k[-1])))
    i = int(fits[plot.distance[fits].argmin()]) if fits.size else int(plot.distance.argmin())
    verdict, reason = _judge(plot, i, bool(fits.size), count)
    z = float(special.ndtri((1 + level) / 2))
    k, moment = int(plot.k[i]), float(plot.moment[i])
    spread = z * math.sqrt((1 + max(moment, 0.0) ** 2) / k)
    return TailIndex(
        verdict,
        reason,
        float(1 / plot.hill[i]),
        _span(log, k, z),
        k,
        moment,
        (moment - spread, moment + spread),
        float(plot.distance[i]),
        plot,
    )


def _judge(plot: HillPlot, i: int, fits: bool, count: int) -> tuple[TailVerdict, str]:
    """Return the verdict and its reason; `i` is the index of the estimate's k in the plot.

    It weighs the evidence in two places. `last` is the largest k whose entries are one tail of any kind, where there
    are most data. `worst` has the least evidence up to about the estimate's k: near the bulk a mixture of two light
    laws may look like a power law.
    """
    k, evidence = plot.k, plot.evidence()
    if k[-1] < _TELLING:
        return TailVerdict.UNDECIDED, f"{count} non-zero entries leave {k[-1]} in the tail, {_TELLING} are needed"
    telling = np.flatnonzero(k >= _TELLING)
    tail = telling[plot.pareto_distance[telling] * np.sqrt(k[telling]) < _TAIL]
    last = int(tail[-1] if tail.size else telling[0])
    near = telling[k[telling] <= max(k[i], k[telling[0]], _NEAR * k[-1])]
    worst = int(near[evidence[near].argmin()])
    light = evidence[last] < -3 and plot.moment[last] * math.sqrt(k[last]) < 3
    at = last if light else worst
    found = f"the moment estimator is {plot.moment[at]:.2f}, Hill's {plot.hill[at]:.2f}, at k = {k[at]}"
    if light or (evidence[worst] < -3 and evidence[last] < 25):
        return TailVerdict.NOT_POWER_LAW, found
    if not fits:
        return TailVerdict.UNDECIDED, f"no k fits a power law (least KS distance {plot.distance[i]:.3f} at k = {k[i]})"
    if evidence[i] > 4.5 and (evidence[worst] > -1 or (evidence[last] > 25 and evidence[worst] > -5)):
        return TailVerdict.POWER_LAW, found
    return TailVerdict.UNDECIDED, found


def _span(log: np.ndarray, k: int, z: float) -> tuple[float, float]:
    """Return the lowest and the highest end of Hill's intervals at k, k/2, k/4 and k/8.

    With smaller k the bias of Hill's estimate falls and its variance rises: where the plot drifts, the span is wide.
    """
    sizes = sorted({max(k // part, _FIRST) for part in (1, 2, 4, 8)})
    hill = [float(np.mean(log[:size] - log[size])) for size in sizes]
    low, high = ([(1 + s * z / math.sqrt(k)) / g for k, g in zip(sizes, hill, strict=True)] for s in (-1, 1))
    return max(min(low), 0.0), max(high)


def _plot(log: np.ndarray) -> HillPlot:
    sizes = np.unique(np.geomspace(min(_FIRST, log.size - 1), log.size - 1, _POINTS).round().astype(int))
    columns = np.array([_estimates(log[:k] - log[k]) for k in sizes])
    return HillPlot(sizes, *columns.T)


def _estimates(excess: np.ndarray) -> tuple[float, float, float, float]:
    """Return Hill's gamma, the moment estimator's and the KS distances from their laws; log excesses, largest first."""
    first, second = excess.mean(), np.square(excess).mean()
    spread = max(1 - first**2 / second, 1e-9)  # it would be 0 where all excesses are equal
    light = 1 - 0.5 / spread
    gamma, scale = first + light, first * (1 - light)  # parameters of the generalized Pareto law of X / X_(k+1) - 1
    base = np.clip(1 + gamma * np.expm1(excess) / scale, 1e-300, None)
    law = np.exp(-np.log(base) / gamma) if abs(gamma) > 1e-9 else np.exp(-np.expm1(excess) / scale)
    return float(first), float(gamma), _distance(np.exp(-excess / first)), _distance(law)


def _distance(fitted: np.ndarray) -> float:
    """Return the KS distance from the probabilities that a fitted law exceeds each entry, largest entry first."""
    rank = np.arange(fitted.size + 1) / fitted.size
    return float(max((rank[1:] - fitted).max(), (fitted - rank[:-1]).max()))


def _largest(x: Array, cap: float) -> tuple[np.ndarray, int]:
    """Return the share `cap` of the largest |x| and one more, largest first, and the count of non-zero entries."""
    check_floating(x)
    if not 0 < cap <= 0.5:
        raise ValueError(f"cap must be in (0, 0.5], the share of entries that may belong to the tail, got {cap}")
    x = widen(x)
    magnitude = np.abs(x.detach().cpu().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)).reshape(-1)
    count = int(np.count_nonzero(magnitude))
    k = int(cap * count)
    if k <= _FIRST:
        need = math.ceil((_FIRST + 1) / cap)
        raise ValueError(f"x has {count} non-zero entries, too few for a tail: at least {need} are needed at cap {cap}")
    if not np.isfinite(magnitude.max()):
        raise ValueError("x has NaN or infinite entries, which have no tail: leave them out first")
    top = np.partition(magnitude, magnitude.size - k - 1)[magnitude.size - k - 1 :]
    return np.sort(top)[::-1].astype(np.float64), count


def _tied(log: np.ndarray) -> TailIndex:
    """Return the result where the largest entries are equal, as after a clip or in Adam's first update."""
    empty = HillPlot(*(np.zeros(0, int if i == 0 else float) for i in range(5)))
    same = int(np.count_nonzero(log[0] - log < 1e-12))
    reason = f"the largest {same} entries are equal, as after a clip"
    infinite = (math.inf, math.inf)
    return TailIndex(TailVerdict.NOT_POWER_LAW, reason, math.inf, infinite, same, 0.0, (0.0, 0.0), 1.0, empty)
