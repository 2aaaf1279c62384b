"""Clipping operators `(x, threshold) -> x`, written once for torch, numpy and jax.

    hard_clip          C_tau(x) = x min(1, tau/|x|)         Eq. coor_clip, two_clipping_op
    smooth_shrinkage   S_c(x)   = x exp(-|x|/c)             Eq. smooth_shrink, two_clipping_op
    soft_threshold     x - C_t(x)                           what hard clipping takes away
    global_clip        x min(1, c/||x||_F)                  section prelim_clipping_methods

Each is pure, out of place, odd, homogeneous (`op(a x, a t) = a op(x, t)` for a > 0) and keeps dtype and shape. Limits
hold where the formula reads 0/0 or inf * 0: `smooth_shrinkage(inf, c) = 0`, `hard_clip(inf, t) = t`, threshold 0 gives
0, threshold inf gives x, NaN stays NaN. A number as threshold is validated; an array is trusted, broadcasts, and NaN in
it gives NaN.
"""

import math
from typing import Any

import torch

from .arrays import (
    Array,
    cast_like,
    check_floating,
    constant,
    matrix_axes,
    on_host,
    quiet,
    threshold_like,
    widen,
)


def hard_clip(x: Array, tau: Any) -> Array:
    """Clip every entry to [-tau, tau]: the paper's C_tau.

    >>> import torch
    >>> hard_clip(torch.tensor([-3.0, 0.5, float("inf")]), 1.0)
    tensor([-1.0000,  0.5000,  1.0000])
    """
    xp = check_floating(x)
    tau = threshold_like(tau, x, "tau")
    if xp is torch and on_host(x) and tau.numel() == 1 and not tau.requires_grad:
        return x.clamp(-tau.item(), tau.item())  # twice as fast with numbers as with tensors
    return cast_like(xp.clip(x, -tau, tau), x)


def smooth_shrinkage(x: Array, c: Any) -> Array:
    """Damp every entry by exp(-|x|/c): the paper's S_c, largest (c/e) at |x| = c and falling to 0 beyond.

    >>> import torch
    >>> smooth_shrinkage(torch.tensor([-1.0, 0.0, 0.1, 9.0, float("inf")]), 1.0)
    tensor([-0.3679,  0.0000,  0.0905,  0.0011,  0.0000])
    """
    xp = check_floating(x)
    c = threshold_like(c, x, "c", wide=True)
    if xp is torch and on_host(x) and (shrunk := _smooth_shrinkage_in_place(x, c)) is not None:
        return shrunk
    y = widen(x)  # half precision would round |x|/c before the exponential: errors of percents
    with quiet(xp):
        # Entries whose limit is 0 are set to 0 first: no inf * 0 and no 0/0, in the value or its derivative.
        largest = xp.where(c == 0, c, constant(float(xp.finfo(y.dtype).max), c))
        kept = xp.where(xp.abs(y) > largest, 0.0, y)
        shrunk = kept * xp.exp(xp.abs(kept) / -xp.where(c == 0, 1.0, c))
        return cast_like(xp.where(c == float("inf"), y, shrunk), x)


def _smooth_shrinkage_in_place(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor | None:
    """Compute the formula with one temporary, much faster on a CPU; None where a limit or a derivative is needed."""
    if torch.is_grad_enabled() and (x.requires_grad or c.requires_grad):
        return None
    if x.numel() == 0 or not bool(((c > 0) & (c < math.inf)).all()):
        return None
    y = widen(x)
    shrunk = y.abs().div_(-c.item() if c.numel() == 1 else -c).exp_().mul_(y)
    return None if math.isnan(shrunk.sum().item()) else shrunk.to(x.dtype)  # inf * 0: the limit is 0


def soft_threshold(x: Array, t: Any) -> Array:
    """Move every entry by t towards 0: `x - hard_clip(x, t)`, so threshold 0 gives x and threshold inf gives 0.

    >>> import torch
    >>> soft_threshold(torch.tensor([-3.0, 0.5, float("inf")]), 1.0)
    tensor([-2.,  0., inf])
    """
    xp = check_floating(x)
    t = threshold_like(t, x, "t")
    with quiet(xp):
        return cast_like(xp.where(xp.abs(x) <= t, xp.zeros_like(x), x - hard_clip(x, t)), x)


def global_clip(x: Array, c: Any) -> Array:
    """Scale each matrix (last two dimensions; a vector as a whole) down to Frobenius norm c at most.

    An infinite entry outweighs every finite one: the infinite entries then share the norm and the others become 0.

    >>> import torch
    >>> global_clip(torch.tensor([3.0, 4.0]), 1.0)
    tensor([0.6000, 0.8000])
    """
    xp = check_floating(x)
    c = threshold_like(c, x, "c", wide=True, per_matrix=True)
    y = widen(x)
    if 0 in x.shape:
        return x + 0
    top, unit, norm = scaled_norm(y)
    with quiet(xp):
        return cast_like(xp.where(norm * top <= c, y, unit * (c / xp.where(norm == 0, 1.0, norm))), x)


def scaled_norm(y: Array) -> tuple[Array, Array, Array]:
    """Return (top, unit, norm): each matrix's largest |entry|, the matrix divided by it, and that one's Frobenius norm.

    `norm * top`, of shape (..., 1, 1), is the Frobenius norm of y. Squares of `unit` neither overflow nor vanish; where
    top is inf, unit holds the signs of the infinite entries.
    """
    xp = check_floating(y)
    axes = matrix_axes(y)
    inf = float("inf")
    with quiet(xp):
        top = xp.amax(xp.abs(y), axes, keepdims=True) if axes else xp.abs(y)
        finite = y / xp.where((top == 0) | (top == inf), 1.0, top)
        unit = xp.where(top == inf, xp.sign(y) * (xp.abs(y) == inf), finite)
        square = xp.sum(unit * unit, axis=axes, keepdims=True) if axes else unit * unit
        norm = xp.where(square == 0, 0.0, xp.sqrt(xp.where(square == 0, 1.0, square)))  # a derivative at 0, too
    return top, unit, norm


def device_norm(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Do as `scaled_norm` in three passes over a tensor on a device that needs no derivative.

    The norm is NaN where an entry is not finite.
    """
    axes = matrix_axes(y) or None
    top = torch.linalg.vector_norm(y, torch.inf, axes, keepdim=True)
    unit = y / torch.where(top == 0, 1.0, top)
    return top, unit, torch.linalg.vector_norm(unit, 2, axes, keepdim=True)


def match_norm(y: Array, x: Array) -> Array:
    """Scale each matrix of `y` to the Frobenius norm of `x`'s; unchanged where either norm is 0 or not finite."""
    xp = check_floating(x)
    if 0 in x.shape:
        return y
    away = xp is torch and not on_host(x) and not (torch.is_grad_enabled() and (x.requires_grad or y.requires_grad))
    scaled_norm_of = device_norm if away else scaled_norm
    (top, _, norm), (new_top, unit, new_norm) = scaled_norm_of(widen(x)), scaled_norm_of(widen(y))
    with quiet(xp):
        scaled = unit * (norm / new_norm) * top
        sound = (top < float("inf")) & (new_top > 0) & (new_top < float("inf"))
        return cast_like(xp.where(sound, scaled, widen(y)), y)


# The operators that the conformance tests run over. A new operator is a function above and a name here.
OPERATORS = (hard_clip, smooth_shrinkage, soft_threshold, global_clip)

# Those that treat every entry alike: each process applies them to its own shard of a distributed tensor.
ENTRYWISE = (hard_clip, smooth_shrinkage, soft_threshold)
