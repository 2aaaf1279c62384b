"""Exact quantiles of |x| at any size, dtype, device and stride: `torch.quantile(x.abs(), q)` where it refuses or sorts.

The definition is numpy's (linear interpolation): with the n magnitudes in order, position `p = q (n - 1)` taken in
fp64, the result lies between the order statistics at `floor(p)` and `floor(p) + 1`, interpolated in fp64. Both are
selected exactly: by selection.py on the host, device.py for a torch tensor on a device or while traced, counting.py for
jax, sharded.py for a DTensor.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..arrays import (
    Array,
    cast,
    check_floating,
    constant,
    dtype_name,
    is_array,
    is_number,
    namespace,
    on_host,
    wide_dtype,
)
from ..dtensor import is_dtensor
from .counting import bisect
from .device import quantile_on_device
from .order import interpolate, magnitude_bits
from .selection import select
from .sharded import select_sharded


def quantile_abs(
    x: Array,
    q: float | Sequence[float] | Array,
    *,
    dim: int | Sequence[int] | None = None,
    nonzero: bool = False,
    sample: int | None = None,
    generator: Any = None,
) -> Array:
    """Compute the q-quantile of |x|, exactly, in fp64 for fp64 input and fp32 for the rest. No gradient flows through.

    x          torch tensor, numpy or jax array; any float dtype, size and strides. Of a DTensor the processes exchange
               counts, not entries, and all get the result as a plain tensor
    q          a number in [0, 1], or several as a sequence or 1-d array: they come first in the result's shape
    dim        the dimensions reduced: None for all, (-2, -1) for one value per matrix
    nonzero    rank only the entries that are not 0 (all zero: the result is 0)
    sample     estimate from this many entries drawn with replacement: the rank of the result is then off by more than e
               with probability at most 2 exp(-2 sample e^2) (Dvoretzky-Kiefer-Wolfowitz), its standard deviation is
               sqrt(q (1-q) / sample). `generator` is torch's, numpy's, or a jax key (required there)

    NaN anywhere gives NaN; inf counts as large; no entries to rank are an error, an empty batch gives an empty result.

    >>> import torch
    >>> quantile_abs(torch.tensor([-3.0, 1.0, -2.0]), 0.75)
    tensor(2.5000)
    >>> quantile_abs(torch.eye(2).expand(4, 2, 2), torch.tensor([0.0, 1.0]), dim=(-2, -1)).shape
    torch.Size([2, 4])
    """
    xp = check_floating(x)
    levels, lead = _check_levels(q)
    inner, outer = _split(x, dim)
    batch = tuple([x.shape[axis] for axis in outer])
    if 0 in batch:
        return xp.broadcast_to(constant(0.0, x, wide_dtype(x)), (*lead, *batch))
    if is_dtensor(x):
        if sample is not None:
            raise ValueError(
                "sample is not supported for a DTensor: leave it out, the exact quantile moves only counts"
            )
        values = [interpolate(select_sharded([x], [inner], level, nonzero), dtype_name(x)) for level in levels]
    else:
        rows = _as_rows(x.detach().resolve_neg() if xp is torch else x, inner, outer)
        shape = (math.prod(batch), math.prod([x.shape[axis] for axis in inner]))
        if sample is not None:
            rows = _draw(rows.reshape(shape), sample, generator)
            shape = (shape[0], sample)
        values = [_exact(rows, shape, level, nonzero) for level in levels]
    result = (xp.stack(values) if lead else values[0]).reshape((*lead, *batch))
    return cast(result, xp.float64 if dtype_name(x) == "float64" else xp.float32)


def _exact(x: Array, shape: tuple[int, int], q: float, nonzero: bool) -> Array:
    """Compute the q-quantile of each row of |x|, viewed as `shape` (rows, n), in fp32 or fp64."""
    if not on_host(x):
        if isinstance(x, torch.Tensor):
            return quantile_on_device([x.reshape(shape)], q, nonzero)
        return interpolate(bisect(magnitude_bits(x.reshape(shape)), q, nonzero), dtype_name(x))
    value = interpolate(select(x, shape, q, nonzero), dtype_name(x))
    return torch.from_numpy(value) if isinstance(x, torch.Tensor) else value


def _check_levels(q: Any) -> tuple[list[float], tuple[int, ...]]:
    """Return the levels as numbers, and the shape that they give the result: () for one number, (count,) for more."""
    plain = q if is_number(q) or isinstance(q, Sequence) or not is_array(q) else q.tolist()
    levels = [plain] if is_number(plain) else list(plain) if isinstance(plain, Sequence) else []
    if not levels or not all(is_number(level) and 0 <= level <= 1 for level in levels):
        raise ValueError(f"q must be a number in [0, 1] or a non-empty sequence or 1-d array of them, got {q!r}")
    return [float(level) for level in levels], () if is_number(plain) else (len(levels),)


def _split(x: Array, dim: int | Sequence[int] | None) -> tuple[list[int], list[int]]:
    """Return the dimensions that are ranked together, and the others."""
    axes: Any = range(x.ndim) if dim is None else (dim,) if is_number(dim) else dim
    sides = max(x.ndim, 1)  # of a scalar torch takes the dimensions 0 and -1
    if not isinstance(axes, range | Sequence) or any(not is_number(a) or not -sides <= a < sides for a in axes):
        raise ValueError(f"dim must name dimensions of x, which has {x.ndim}, got {dim}")
    inner = [int(axis) % sides for axis in axes]
    if len(set(inner)) != len(inner):
        raise ValueError(f"dim names a dimension twice: {dim}")
    if not x.ndim:
        return [], []
    if math.prod([x.shape[axis] for axis in inner]) == 0:
        raise ValueError(f"cannot take a quantile of no entries: x has shape {tuple(x.shape)}, dim is {dim}")
    return inner, [axis for axis in range(x.ndim) if axis not in inner]


def _as_rows(x: Array, inner: list[int], outer: list[int]) -> Array:
    """View `x` with the dimensions that are ranked together last, in the order of memory."""
    if isinstance(x, torch.Tensor):
        return x.permute((*outer, *sorted(inner, key=lambda axis: -x.stride()[axis])))
    if isinstance(x, np.ndarray):
        strides: Any = x.strides
        return x.transpose(*outer, *sorted(inner, key=lambda axis: -strides[axis]))
    return namespace(x).transpose(x, (*outer, *inner))


def _draw(rows: Array, sample: int, generator: Any) -> Array:
    """Draw `sample` entries of each row, with replacement, at the same places in all."""
    if not isinstance(sample, int) or isinstance(sample, bool) or sample < 1:
        raise ValueError(f"sample must be a whole number >= 1, got {sample!r}")
    n = rows.shape[1]
    place: Any
    if isinstance(rows, torch.Tensor):
        place = torch.randint(n, (sample,), generator=generator, device=rows.device)
    elif isinstance(rows, np.ndarray):
        place = (generator or np.random.default_rng()).integers(n, size=sample)
    else:
        import jax

        if generator is None:
            raise ValueError("sampling a jax array needs generator=jax.random.key(seed)")
        place = jax.random.randint(generator, (sample,), 0, n)
    return rows[:, place]
