"""Smooth shrinkage at a quantile on a device, in few passes: |x| is computed once, for the quantile and the exponent.

An operator alone must handle its limits, which takes passes of its own, and a further one to mark what was not finite.
Here both fall out of the formula: an entry that is not finite becomes NaN, as inf * exp(-inf) does.
"""

import math

import torch
from torch import Tensor

from ..arrays import on_device, wide_dtype
from ..clip import Clip
from ..operators import match_norm, smooth_shrinkage
from ..quantiles.device import quantile_on_device
from ..thresholds import QuantileRule, State, Step


def shrinks_on_device(clip: Clip, x: Tensor) -> bool:
    """Tell whether `shrink_on_device` can apply this clip to `x`: a plain tensor on a device, and no compiler tracing.

    The compiler fuses the passes of the general path itself.
    """
    if not on_device(x) or torch.compiler.is_compiling() or type(x) not in (Tensor, torch.nn.Parameter):
        return False
    return clip.operator is smooth_shrinkage and x.numel() > 0 and isinstance(clip.rule, QuantileRule)


def shrink_on_device(x: Tensor, clip: Clip, memory: State, step: Step) -> tuple[Tensor, State]:
    """Clip `x`, (..., m, n), and return the result with the rule's memory; NaN where `x` is not finite."""
    assert isinstance(clip.rule, QuantileRule)
    size = x.abs()
    threshold, memory = clip.rule.threshold(_quantile(size, clip.rule.level), memory, step)
    zero = threshold == 0  # then the factor is exp(-inf), which takes every finite entry to 0
    offset = torch.zeros_like(threshold).masked_fill_(zero, -math.inf)
    wide = size.to(wide_dtype(x))
    exponent = torch.addcdiv(offset, wide, -threshold.masked_fill(zero, 1.0), out=wide)
    shrunk = exponent.exp_().mul_(x).to(x.dtype)
    return (match_norm(shrunk, x) if clip.preserve_rms else shrunk), memory


def _quantile(size: Tensor, q: float | None) -> Tensor:
    """Return the q-quantile of the entries of each matrix that are not 0, (..., 1, 1); `size` has no negative ones."""
    shape, wide = (*size.shape[:-2], *(1 for _ in size.shape[-2:])), wide_dtype(size)
    if q is None:
        return torch.zeros(shape, dtype=wide, device=size.device)
    if size.ndim > 1 and size.stride(-2) < size.stride(-1):
        size = size.mT  # in the order of memory: reshaping does not copy, and the order does not matter
    rows = size.reshape(math.prod(shape), -1)
    return quantile_on_device(rows, q, True, is_magnitude=True).to(wide).reshape(shape)
