"""Threshold rules by the norm of each matrix: of the size it had in earlier steps, not of its entries now.

    RunningNorm            relative x the running mean of the clipped Frobenius norms    (AdaGC, Wang et al. 2025)
    RunningSpectralNorm    multiple x the running mean of the largest singular value     (Yukhimchuk et al. 2026)

They follow the protocol of `entryclip.thresholds` and go with the operators that act on a whole matrix: `global_clip`
with the first, `spectral_clip` with the second. A step in which a matrix is 0 or not finite changes nothing.
"""

import math
from dataclasses import dataclass

import torch

from .arrays import Array, cast, check_floating, constant, double, is_number, namespace, quiet, wide_dtype, widen
from .dtensor import is_dtensor, norms, whole
from .operators import scaled_norm
from .thresholds import State, Step, ranked


@dataclass(frozen=True)
class RunningNorm:
    """AdaGC's rule (arXiv:2502.11034): each Frobenius norm at most `relative` times the running mean of its own past.

    relative    the multiple of the running mean above which a matrix is scaled down
    beta        how much of the running mean is kept: mean <- beta mean + (1 - beta) min(norm, threshold)
    warmup      steps that only collect: the running mean then begins at the smallest norm among them

    The published method clips the norm of all gradients together during the warm-up; `entryclip.optim.presets.adagc`
    puts both together. As published, a gradient of zeros during the warm-up would hold the matrix still for ever. Here
    such a step does not count.

    >>> import torch
    >>> rule, x = RunningNorm(relative=2.0, beta=0.5, warmup=1), torch.ones(2, 2)
    >>> first, state = rule(x, rule.init(x))
    >>> second, state = rule(100 * x, state)
    >>> third, state = rule(100 * x, state)
    >>> float(first), float(second), float(third)
    (inf, 4.0, 6.0)
    """

    relative: float = 1.04
    beta: float = 0.99
    warmup: int = 100

    def __post_init__(self) -> None:
        if not (is_number(self.relative) and 0 < self.relative < math.inf):
            raise ValueError(f"relative must be a positive finite number, got {self.relative!r}")
        _check_beta(self.beta)
        if type(self.warmup) is not int or self.warmup < 0:
            raise ValueError(f"warmup must be a whole number >= 0, got {self.warmup!r}")

    @property
    def has_memory(self) -> bool:
        return True

    def init(self, x: Array) -> State:
        """Return the state before the first step: no running mean, no step; 0 for each matrix."""
        zero = 0 * ranked(x, None)
        return {"average": zero, "steps": zero + 0}

    def __call__(self, x: Array, state: State | None = None, step: Step | None = None) -> tuple[Array, State]:
        state = _known(state, self)
        norm = frobenius_norm(x)
        xp, average, steps = namespace(norm), state["average"], state["steps"]
        with quiet(xp):
            is_warm, is_first = steps < self.warmup, steps == 0
            smallest = xp.where(is_first, norm, xp.minimum(average, norm))
            threshold = xp.where(is_warm | is_first, constant(math.inf, norm), self.relative * average)
            start = xp.where(is_first, norm, average)
            mean = self.beta * start + (1 - self.beta) * xp.minimum(norm, threshold)
            usable = (norm > 0) & (norm < math.inf)
            updated = xp.where(usable, xp.where(is_warm, smallest, mean), average)
        return threshold, {"average": updated, "steps": xp.where(usable, steps + 1, steps)}

    def __str__(self) -> str:
        return f"{self.relative:g} x running norm, beta={self.beta:g}, warmup={self.warmup}"


@dataclass(frozen=True)
class RunningSpectralNorm:
    """A running mean of the largest singular value of each matrix, up to the step before (arXiv:2605.11838).

    beta        how much of the mean is kept; it is freed of its start's bias, as Adam's moments are
    multiple    what the mean is multiplied by: 1 as published

    The first step is not clipped. The singular values that enter the mean are those before the clip.

    >>> import torch
    >>> rule, x = RunningSpectralNorm(beta=0.5), torch.eye(2)
    >>> first, state = rule(3 * x, rule.init(x))
    >>> second, state = rule(9 * x, state)
    >>> third, state = rule(x, state)
    >>> float(first), float(second), float(third)
    (inf, 3.0, 7.0)
    """

    beta: float = 0.9
    multiple: float = 1.0

    def __post_init__(self) -> None:
        _check_beta(self.beta)
        if not (is_number(self.multiple) and 0 < self.multiple < math.inf):
            raise ValueError(f"multiple must be a positive finite number, got {self.multiple!r}")

    @property
    def has_memory(self) -> bool:
        return True

    def init(self, x: Array) -> State:
        """Return the state before the first step: a mean of weight 0 for each matrix."""
        zero = 0 * ranked(x, None)
        return {"average": zero, "weight": zero + 0}

    def __call__(self, x: Array, state: State | None = None, step: Step | None = None) -> tuple[Array, State]:
        state = _known(state, self)
        sigma = largest_singular_value(x)
        xp, average, weight = namespace(sigma), state["average"], state["weight"]
        with quiet(xp):
            is_first = weight == 0
            mean = average / xp.where(is_first, xp.ones_like(weight), weight)
            threshold = xp.where(is_first, constant(math.inf, sigma), self.multiple * mean)
            usable = (sigma > 0) & (sigma < math.inf)
            updated = xp.where(usable, self.beta * average + (1 - self.beta) * sigma, average)
            grown = xp.where(usable, self.beta * weight + (1 - self.beta), weight)
        return threshold, {"average": updated, "weight": grown}

    def __str__(self) -> str:
        factor = "" if self.multiple == 1 else f"{self.multiple:g} x "
        return f"{factor}running sigma_1, beta={self.beta:g}"


def frobenius_norm(x: Array) -> Array:
    """Return the Frobenius norm of each matrix of `x`, (..., 1, 1), in fp32 at least; a vector is taken as a whole.

    >>> import torch
    >>> frobenius_norm(torch.full((2, 2), 1e30))
    tensor([[2.0000e+30]])
    """
    xp = check_floating(x)
    if 0 in x.shape:
        return ranked(x, None)
    if is_dtensor(x):
        return cast(norms(x), wide_dtype(x))
    top, _, norm = scaled_norm(widen(x))
    with quiet(xp):
        return top * norm


def largest_singular_value(x: Array) -> Array:
    """Return the largest singular value of each matrix of `x`, (..., 1, 1), by SVD in fp64; the norm of a vector.

    It is inf or NaN where an entry is.
    """
    x = whole(x)
    if x.ndim < 2 or 0 in x.shape:
        return frobenius_norm(x)
    xp = check_floating(x)
    top, unit, _ = scaled_norm(widen(x))
    finite = double(xp.where(top < math.inf, unit, xp.zeros_like(unit)))
    values = torch.linalg.svdvals(finite) if xp is torch else xp.linalg.svd(finite, compute_uv=False)
    with quiet(xp):
        sigma = cast(values[..., :1, None] * double(top), top.dtype)
        return xp.where(top < math.inf, sigma, top)


def _known(state: State | None, rule: object) -> State:
    """Return the state that a rule with memory was called with, or raise where there is none."""
    if state is None:
        raise ValueError(f"{rule} has memory: pass the state that rule.init(x) or the call before returned")
    return state


def _check_beta(beta: float) -> None:
    if not (is_number(beta) and 0 <= beta < 1):
        raise ValueError(f"beta must be a number in [0, 1), got {beta!r}")
