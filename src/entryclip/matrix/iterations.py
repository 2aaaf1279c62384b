"""Iterations towards the matrix sign by odd quintic polynomials, which need only matrix products.

X <- aX + (bA + cA^2)X with A = XX^T takes a singular value s to as + bs^3 + cs^5 and leaves the singular vectors.

    NEWTON_SCHULZ, POLAR_EXPRESS    fixed schedules of five steps, which take singular values near 1
    minimax_quintics                the shortest schedule that converges, where the smallest singular value is known
    polar_factor                    converges to the precision of the dtype, where it is not known

Of a wide matrix the steps can be taken on the small Gram matrix instead (`may_use_gram`, `iterate(..., by_gram=True)`):
fewer products with the long side, at some cost in accuracy.

Long minimax schedules oscillate so much that they amplify rounding errors more than tenfold, so `polar_factor` uses a
short one and then steps that have a fixed point at 1.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from ..arrays import Array, eye_like, namespace, on_host

Quintic = tuple[float, float, float]

# Jordan's five steps for Muon: singular values above 1 % of the norm end in [.68, 1.14], smaller ones below 1.21.
NEWTON_SCHULZ: Sequence[Quintic] = ((3.4445, -4.7750, 2.0315),) * 5

# Polar Express (Amsel et al. 2025), for a matrix divided by 1.02 times its norm: they end in [.86, 1.14].
POLAR_EXPRESS: Sequence[Quintic] = (
    (8.1566, -22.4833, 15.8788),
    (4.0429, -2.8089, 0.5000),
    (3.8917, -2.7725, 0.5061),
    (3.2858, -2.3681, 0.4645),
    (2.3465, -1.7098, 0.4232),
)

_CACHED = 1 << 17  # entries of a batch of small matrices iterated together on a CPU: as many as its L2 cache holds
_GRAM_GROWTH = 3.5  # the largest slope at 0 of a step that is taken on a rounded Gram matrix; Jordan's is 3.44
_SETTLE: Quintic = (15 / 8, -10 / 8, 3 / 8)  # p(1) = 1, p'(1) = p''(1) = 0: each step triples the digits


def iterate(x: Array, steps: Sequence[Quintic], *, by_gram: bool = False) -> Array:
    """Apply the quintic steps to each matrix of `x`, (..., m, n), with products on the shorter side.

    `by_gram`, for torch only, takes them on the Gram matrix: see `_take_steps_by_gram`.
    """
    take_steps = _take_steps_by_gram if by_gram else _take_steps
    tall = x.shape[-2] > x.shape[-1]
    y = x.mT if tall else x
    shape = y.shape
    if isinstance(y, torch.Tensor):
        y = y.reshape((-1, *shape[-2:]))
        few = max(_CACHED // math.prod(shape[-2:]), 1) if y.device.type == "cpu" else len(y)
        parts = [take_steps(part, steps) for part in torch.split(y, few)]
        y = parts[0] if len(parts) == 1 else torch.cat(parts)
    else:
        y = take_steps(y, steps)
    y = y.reshape(shape)
    return y.mT if tall else y


def _take_steps(y: Array, steps: Sequence[Quintic]) -> Array:
    for a, b, c in steps:
        gram = y @ y.mT
        y = _sum_of_product(a, y, _sum_of_product(b, gram, gram, gram, c), y, 1.0)
    return y


def may_use_gram(x: Array, steps: Sequence[Quintic]) -> bool:
    """Tell whether steps on the Gram matrix pay for `x`: on a device, with fewer operations and hardly more error.

    At aspect ratio r five steps take 20 r + 10 multiplications per m^3 of the short side m, and on the Gram matrix
    12 r + 22. In half precision the error of Jordan's steps, 1 to 28 % of the result's norm, grows by less than 1 % of
    it. It would double in fp32, and with steps that lift small singular values faster, as those of Polar Express do.
    """
    if not isinstance(x, torch.Tensor) or x.device.type == "cpu" or x.dtype not in (torch.bfloat16, torch.float16):
        return False
    short, long = sorted(x.shape[-2:])
    return long >= 2 * short and len(steps) > 1 and max(a for a, _, _ in steps) <= _GRAM_GROWTH


def _take_steps_by_gram(y: torch.Tensor, steps: Sequence[Quintic]) -> torch.Tensor:
    """Take the first step as usual and then two at a time, with one product into and out of the long side for both.

    With A = YY^T and W = aI + bA + cA^2 a step is Y <- WY, A <- WAW (Zhang, Amsel, Chen and Dao 2026, "Gram
    Newton-Schulz"). A step multiplies rounding errors of A by up to a^2, so that A is computed anew after every second
    one, and after the first, which sees the smallest singular values.
    """
    y = _take_steps(y, steps[:1])
    for i in range(1, len(steps), 2):
        pair = steps[i : i + 2]
        y = _factor_of_two(y @ y.mT, *pair) @ y if len(pair) == 2 else _take_steps(y, pair)
    return y


def _factor_of_two(gram: torch.Tensor, first: Quintic, second: Quintic) -> torch.Tensor:
    """Return W2 W1, the product by which two steps multiply a matrix with this Gram matrix A."""
    a, b, c = first
    w1 = _sum_of_product(b, gram, gram, gram, c)
    half = _sum_of_product(a, gram, gram, w1, 1.0)  # A W1, while w1 still lacks its diagonal aI
    gram = _sum_of_product(a, half, w1, half, 1.0)
    w1.diagonal(dim1=-2, dim2=-1).add_(a)
    a, b, c = second
    return _sum_of_product(a, w1, _sum_of_product(b, gram, gram, gram, c), w1, 1.0)


def _sum_of_product(beta: float, base: Array, left: Array, right: Array, alpha: float) -> Array:
    """Return beta base + alpha left @ right; torch does it in one call."""
    if isinstance(base, torch.Tensor):
        return torch.baddbmm(base, left, right, beta=beta, alpha=alpha)
    return beta * base + alpha * (left @ right)


@lru_cache
def minimax_quintics(lower: float, tol: float) -> tuple[Quintic, ...]:
    """Return steps whose composition takes [lower, 1] to within `tol` of 1, each the best for the interval left so far.

    That greedy choice is optimal (Amsel et al. 2025). Near 1 the classical quintic takes over.

    >>> len(minimax_quintics(1e-3, 1e-7)), len(minimax_quintics(1e-6, 1e-7))
    (7, 12)
    """
    if not 0 < lower <= 1 or not 0 < tol < 1:
        raise ValueError(f"lower must be in (0, 1] and tol in (0, 1), got {lower} and {tol}")
    steps: list[Quintic] = []
    error, low, high = 1 - lower, lower, 1.0
    while error > 0.1:
        # Some room above: the upper end is a fixed point at which rounding errors would grow 25-fold a step.
        step, error = _best_quintic(low, 1.01 * high)
        steps.append(step)
        low, high = 1 - error, 1 + error
    while error > tol:
        steps.append(_SETTLE)
        error = 2.5 * error**3 + error**4  # no less than |1 - p(1 +- error)| for error up to 0.1
    return tuple(steps)


def polar_factor(y: Array) -> Array:
    """Compute the polar factor of `y`, (..., m, n), with norm <= 1: singular values from 8 eps on become 1.

    Smaller ones end in [0, 1]. On the host only the matrices that have not converged go on after the first round.
    """
    eps = float(namespace(y).finfo(y.dtype).eps)
    shape = y.shape
    y = y.reshape((-1, *shape[-2:]))
    y = iterate(y, (*_HEAD, *_ROUND))
    for _ in range(_rounds(8 * eps) - 1):
        if not on_host(y):
            y = iterate(y, _ROUND)
            continue
        late = _deviation(y) > 20 * eps
        if not late.any():
            break
        y[late] = iterate(y[late], _ROUND)
    return y.reshape(shape)


def _deviation(y: Array) -> Array:
    """Return the largest entry of |I - YY^T|, on the shorter side, of each matrix."""
    xp = namespace(y)
    y = y.mT if y.shape[-2] > y.shape[-1] else y
    return xp.amax(xp.abs(y @ y.mT - eye_like(y)), (-2, -1))


def _rounds(lower: float) -> int:
    """Count the rounds after the head that lift `lower` to a half: a step multiplies small singular values by `a`."""
    lifted = lower * math.prod([a for a, _, _ in _HEAD])
    return math.ceil(math.log(0.5 / lifted) / math.log(math.prod([a for a, _, _ in _ROUND])))


def _best_quintic(low: float, high: float) -> tuple[Quintic, float]:
    """Find the ax + bx^3 + cx^5 nearest to 1 on [low, high] and its largest error, by Remez exchange of four points."""
    x = (low + high) / 2 - (high - low) / 2 * np.cos(np.pi * np.arange(4) / 3)
    for _ in range(50):
        a, b, c, error = np.linalg.solve(np.stack([x, x**3, x**5, [1, -1, 1, -1]], 1), np.ones(4))
        root = np.sqrt(9 * b * b - 20 * a * c)
        inner = np.sqrt((-3 * b + np.array([-root, root])) / (10 * c))
        before, x = x, np.array([low, *inner, high])
        if np.abs(x - before).max() < 1e-12:
            break
    return (float(a), float(b), float(c)), float(abs(error))


# The head takes singular values above 1e-2 to within 1e-3 of 1; a round multiplies small ones by 257 and keeps 1 at 1.
_HEAD = minimax_quintics(1e-2, 1e-3)
_GROW = (2.5, -2.5, 1.0)  # p(1) = 1, p'(1) = 0, slope 2.5 at 0, and never above 1.04
_ROUND = (_GROW,) * 4 + (_SETTLE,) * 3
