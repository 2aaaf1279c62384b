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
    count = math.prod(x.shape[:-2])
    stored = x.mT if x.ndim > 1 and x.stride(-2) < x.stride(-1) else x  # in the order of memory: no copy to reshape it
    flat = {key: value.reshape(-1, 1) for key, value in memory.items()}
    (y,), flat = shrink_stacks_on_device([stored.reshape(count, -1)], clip, flat, step)
    y = y.reshape(stored.shape)
    return (y if stored is x else y.mT), {key: value.reshape(memory[key].shape) for key, value in flat.items()}


def shrink_stacks_on_device(xs: list[Tensor], clip: Clip, memory: State, step: Step) -> tuple[list[Tensor], State]:
    """Clip stacks of matrices, (matrices, entries) each, whose thresholds are computed together.

    The memory has one row for each matrix of all stacks, and so has the one returned.
    """
    assert isinstance(clip.rule, QuantileRule)
    lengths, sizes = [len(x) for x in xs], [x.abs() for x in xs]
    threshold, memory = clip.rule.threshold(_quantiles(sizes, clip.rule.level), memory, step)
    zero = threshold == 0  # then the factor is exp(-inf), which takes every finite entry to 0
    offsets = torch.split(torch.zeros_like(threshold).masked_fill_(zero, -math.inf), lengths)
    rates = torch.split(-threshold.masked_fill(zero, 1.0), lengths)
    ys = []
    for x, size, offset, rate in zip(xs, sizes, offsets, rates, strict=True):
        wide = size.to(wide_dtype(x))
        exponent = torch.addcdiv(offset, wide, rate, out=wide)
        y = exponent.exp_().mul_(x).to(x.dtype)
        ys.append(match_norm(y[:, None], x[:, None])[:, 0] if clip.preserve_rms else y)
    return ys, memory


def _quantiles(sizes: list[Tensor], q: float | None) -> Tensor:
    """Return the q-quantile of the entries of each row that are not 0, (rows, 1); none of them is negative."""
    wide = wide_dtype(sizes[0])
    if q is None:
        return torch.zeros(sum(map(len, sizes)), 1, dtype=wide, device=sizes[0].device)
    return quantile_on_device(sizes, q, True, is_magnitude=True).to(wide)[:, None]
