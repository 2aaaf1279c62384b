"""The four convergence theorems: {post, pre} x {hard, smooth}.

Gradients bounded by B in every entry, an L-smooth objective with Delta = f(X_0) - inf f, and noise
(1-alpha) N(0, sigma^2) + alpha Cauchy(gamma) (ass:smooth-main, ass:bounded-main, ass:noise-main). With d = mn,
r = min(m, n), D = sqrt(max(m, n)/r), and R the largest output of the operator (tau, or c/e for smooth shrinkage):

    post   mean of E||G||_F^2 <= 2 R sqrt(2 L Delta d / K)                     thm:post-hard-main, thm:post-smooth-main
    pre    mean of E||G||_*   <= 2 sqrt(2 L r Delta / T) + 4 D r^1.5 sqrt(v/N)   thm:pre-hard-main, thm:pre-smooth-main

The descent lemmas behind them hold for every symmetric noise once its bias and variance are bounded. `exact_bias.py`
does that for the other laws of the package and names the steps that need Cauchy; `scales.py` has what changes where
rows and columns have scales of their own.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..noise.contamination import Contamination, HeavyPart
from ..noise.laws import Law, check_number
from .entry import EntryMoments, bounds_of, exact, in_paper, relative_bias
from .exact_bias import smallest_threshold, steps_without_cauchy, variance_bound
from .scales import ScaleChoice, Scales, check_scales


@dataclass(frozen=True)
class Guarantee:
    """The guarantee that one of the four theorems gives for a problem. Printing it shows all numbers.

    With `scales`, the fields from `noise` to `variance` that belong to an entry are those of the entry over r_i c_j.
    """

    stage: str  # "post" or "pre"
    operator: str  # "hard" or "smooth"
    noise: Law
    bound: float  # B, the largest |entry| of the true gradient
    shape: tuple[int, int]  # (m, n)
    smoothness: float  # L
    gap: float  # Delta
    threshold: float  # tau or c
    rho: float  # bound on the relative bias
    variance: float  # bound on the variance of a clipped entry
    step_size: float
    iterations: int  # K or T
    batch: int  # 1 or N
    rate: float  # bound on the mean of E||G||_F^2 (post) or E||G||_* (pre)
    from_exact_bias: bool = (
        False  # whether threshold and variance come from the law itself, not from the paper's bounds
    )
    scales: Scales | None = None  # of rows and columns; None where all entries have the same

    @property
    def samples(self) -> int:
        """The number of noisy gradients: iterations x batch."""
        return self.iterations * self.batch

    @property
    def stationarity(self) -> float:
        """The bound on the mean of E||G||, in the Frobenius norm (post) or the nuclear norm (pre)."""
        return math.sqrt(self.rate) if self.stage == "post" else self.rate

    @property
    def theorem(self) -> str:
        """The theorem's label in the paper."""
        return f"thm:{self.stage}-{self.operator}-main"

    @property
    def thresholds(self) -> np.ndarray:
        """The (m, n) thresholds of the entries: t r_i c_j, all the same without scales."""
        return (self.scales or Scales.ones(self.shape)).thresholds(self.threshold)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The steps of the paper's proof that need Cauchy noise, and what stands here in their place, in words."""
        return steps_without_cauchy(self.noise) if self.from_exact_bias else ()

    @property
    def exact(self) -> EntryMoments:
        """The exact rho and variance, by quadrature."""
        return exact(self.operator, self.threshold, self.noise, self.bound)

    @property
    def sharper_rate(self) -> float:
        """The rate with the exact rho and variance: lem:post-relative-descent-app, lem:pre-relative-descent-app.

        `rate` holds for noise that is weaker at some steps, too, and so does this one for post-clipping. For
        pre-clipping it needs the noise to be the same at every step: weaker noise can have a larger exact variance.
        """
        rho, variance = self.exact
        peak = bounds_of(self.operator).peak * self.threshold
        scales = self.scales or Scales.ones(self.shape)
        first, second = _terms(self.stage, scales, self.smoothness * self.gap, peak, variance)
        share = rho if self.stage == "post" else 2 * math.sqrt(min(self.shape)) * rho
        return (first / math.sqrt(self.iterations) + second / math.sqrt(self.batch)) / (2 * (1 - share))

    def __str__(self) -> str:
        norm = "E||G||_F" if self.stage == "post" else "E||G||_*"
        rho, variance = self.exact
        lines = [
            f"{self.stage}-clipping, {self.operator} ({self.theorem}{', exact bias' if self.from_exact_bias else ''})",
            f"  threshold    {self.threshold:.4g}{' r_i c_j' if self.scales else ''}",
            f"  rho          {self.rho:.3g} (exact {rho:.3g})",
            f"  variance     {self.variance:.4g} (exact {variance:.4g})",
            f"  step size    {self.step_size:.3g}",
            f"  iterations   {self.iterations:.3g}, batch {self.batch:.3g}, samples {self.samples:.3g}",
            f"  mean {norm} <= {self.stationarity:.4g}",
            *(f"  note: {remark}" for remark in self.remarks),
        ]
        return "\n".join(lines)


def guarantee(
    stage: str,
    operator: str,
    noise: Law,
    *,
    bound: float,
    shape: tuple[int, int],
    smoothness: float = 1.0,
    gap: float = 1.0,
    epsilon: float | None = None,
    iterations: int | None = None,
    batch: int | None = None,
    threshold: float | None = None,
    exact_bias: bool | None = None,
    scales: ScaleChoice = None,
) -> Guarantee:
    """Evaluate a theorem for a target epsilon on the mean gradient norm, or for given iterations (and batch).

    stage       "post" (clip the gradient, then step) or "pre" (clip each sample, average, matrix sign)
    operator    "hard" or "smooth"
    noise       any law of one entry: `Gaussian`, `Cauchy`, `StudentT`, `Laplace`, or `Contamination` by one of them
    bound       B, the largest |entry| of the true gradient; `shape` (m, n) is the parameter's
    smoothness  L of the objective in the Frobenius norm; `gap` is f(X_0) - inf f
    threshold   may be larger than the theorem's smallest one, which is the default
    exact_bias  True takes the threshold from the exact bias, False from the paper's closed form, which is there for
                Gaussian noise with Cauchy contamination only; by default the paper's where it is there
    scales      (r, c), for noise e_ij = r_i z_ij c_j: `noise` is then the law of z, `bound` the largest
                |entry| / (r_i c_j), and entries are clipped at threshold r_i c_j. What `ec.diagnostics.scales(x)`
                returns for one matrix x will do, too; its overall scale is then part of r

    >>> from entryclip.noise import Cauchy, Contamination
    >>> noise = Contamination(alpha=0.05, sigma=1.0, heavy=Cauchy(1.0))
    >>> print(guarantee("post", "hard", noise, bound=1.0, shape=(8, 8), epsilon=0.5))
    post-clipping, hard (thm:post-hard-main)
      threshold    3.039
      rho          0.0511 (exact 0.0177)
      variance     1.143 (exact 1.096)
      step size    0.000211
      iterations   7.57e+04, batch 1, samples 7.57e+04
      mean E||G||_F <= 0.5
    >>> from entryclip.noise import StudentT
    >>> found = guarantee("post", "hard", StudentT(1.5), bound=1.0, shape=(8, 8), epsilon=0.5)
    >>> round(found.threshold, 4), found.from_exact_bias
    (1.02, True)
    """
    rank = _check_problem(stage, shape, smoothness, gap)
    _check_noise(noise)
    found_scales = check_scales(scales, shape)
    sums, peak_ratio = found_scales or Scales.ones(shape), bounds_of(operator).peak
    exact_bias = not in_paper(noise) if exact_bias is None else exact_bias
    slack = 0.5 if stage == "post" else 0.25 / math.sqrt(rank)
    entry = _entry(operator, noise, bound, slack, threshold, exact_bias)
    peak = peak_ratio * entry.threshold
    first, second = _terms(stage, sums, smoothness * gap, peak, entry.variance)
    iterations, batch = _budget(stage, first, second, epsilon, iterations, batch)
    length = peak * sums.frobenius if stage == "post" else math.sqrt(rank)  # bound on the length of an update
    return Guarantee(
        stage=stage,
        operator=operator,
        noise=noise,
        bound=bound,
        shape=shape,
        smoothness=smoothness,
        gap=gap,
        threshold=entry.threshold,
        rho=entry.rho,
        variance=entry.variance,
        step_size=math.sqrt(2 * gap / (smoothness * iterations)) / length,
        iterations=iterations,
        batch=batch,
        rate=first / math.sqrt(iterations) + second / math.sqrt(batch),
        from_exact_bias=exact_bias,
        scales=found_scales,
    )


class _Entry(NamedTuple):
    """The threshold, with the bounds on the relative bias and the variance of an entry that it gives."""

    threshold: float
    rho: float
    variance: float


def _entry(operator: str, noise: Law, bound: float, slack: float, threshold: float | None, exact_bias: bool) -> _Entry:
    """Choose the smallest threshold with a relative bias of at most `slack`, or check the given one."""
    clip = bounds_of(operator)
    smallest = smallest_threshold(operator, noise, bound, slack) if exact_bias else clip.threshold(noise, bound, slack)
    threshold = smallest if threshold is None else threshold
    if not (smallest <= threshold < math.inf and (exact_bias or threshold > bound)):
        raise ValueError(f"the theorem needs a finite threshold of at least {smallest:g}, got {threshold:g}")
    if exact_bias:
        rho = relative_bias(operator, threshold, noise, bound)
        return _Entry(threshold, rho, variance_bound(operator, threshold, noise, bound))
    return _Entry(threshold, clip.rho(threshold, noise, bound), clip.variance(threshold, noise))


def _terms(stage: str, scales: Scales, product: float, peak: float, variance: float) -> tuple[float, float]:
    """Return (first, second) of the rate first/sqrt(iterations) + second/sqrt(batch); product = L Delta."""
    if stage == "post":
        return 2 * peak * math.sqrt(2 * product) * scales.frobenius, 0.0
    rank = min(len(scales.rows), len(scales.columns))
    return 2 * math.sqrt(2 * product * rank), 4 * scales.nuclear * math.sqrt(variance)


def _budget(
    stage: str, first: float, second: float, epsilon: float | None, iterations: int | None, batch: int | None
) -> tuple[int, int]:
    """Return iterations and batch: as given, or as epsilon needs them (pre-clipping: half of it for each term)."""
    if (epsilon is None) == (iterations is None):
        raise ValueError(f"give either epsilon or iterations, got epsilon={epsilon}, iterations={iterations}")
    if stage == "post" and batch not in (None, 1):
        raise ValueError(f"the theorems of post-clipping take one sample per iteration, got batch={batch}")
    if epsilon is not None:
        check_number("epsilon", epsilon)
        if batch is not None and stage == "pre":
            raise ValueError(f"epsilon decides the batch of pre-clipping, got batch={batch} as well")
        if stage == "post":
            return max(1, math.ceil((first / epsilon**2) ** 2)), 1
        return max(1, math.ceil((2 * first / epsilon) ** 2)), max(1, math.ceil((2 * second / epsilon) ** 2))
    if stage == "pre" and batch is None:
        raise ValueError("pre-clipping needs a batch beside the iterations")
    for name, value in (("iterations", iterations), ("batch", batch or 1)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be an integer >= 1, got {value!r}")
    return int(iterations or 1), int(batch or 1)


def _check_problem(stage: str, shape: tuple[int, ...], smoothness: float, gap: float) -> int:
    """Check the problem, and return the smaller side of the matrix."""
    if stage not in ("post", "pre"):
        raise ValueError(f"stage must be post or pre, got {stage!r}")
    if len(shape) != 2 or not all(type(side) is int and side >= 1 for side in shape):
        raise ValueError(f"shape must be two integers >= 1, got {shape!r}")
    check_number("smoothness", smoothness)
    check_number("gap", gap)
    return min(shape)


def _check_noise(noise: Law) -> None:
    """Raise a TypeError unless the noise is a law of one entry for which the bias can be bounded."""
    if not isinstance(noise, HeavyPart | Contamination):
        laws = "the law of one entry: Gaussian, Cauchy, StudentT, Laplace or Contamination"
        remedy = "For noise x of another kind fit one of them to its entries: ec.noise.fit(x).noise"
        raise TypeError(f"noise must be {laws}; got one of type {type(noise).__name__}. {remedy}")
