"""Exact quantiles of |x| at any size, dtype, device and stride: `torch.quantile(x.abs(), q)` where it refuses or sorts.

The definition is numpy's (linear interpolation): with the n magnitudes in order, position `p = q (n - 1)` taken in
fp64, the result lies between the order statistics at `floor(p)` and `floor(p) + 1`, interpolated in fp64. Both are
selected exactly (see selection.py).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..arrays import Array, cast, check_floating, constant, double, dtype_name, is_number, namespace, on_host, quiet
from ..dtensor import is_spread
from .selection import INFINITY_BITS, OrderStatistics, float_of_bits, select
from .sharded import select_spread


def quantile_abs(
    x: Array,
    q: float | Sequence[float],
    *,
    dim: int | Sequence[int] | None = None,
    near: Any = None,
    nonzero: bool = False,
    sample: int | None = None,
    generator: Any = None,
) -> Array:
    """The q-quantile of |x|, exactly, in fp64 for fp64 input and fp32 for the rest. No gradient flows through it.

    x          torch tensor, numpy or jax array; any float dtype, size and strides. Of a DTensor the processes exchange
               counts, not entries, and all get the result as a plain tensor
    q          a number in [0, 1], or several: they come first in the result's shape
    dim        the dimensions reduced: None for all, (-2, -1) for one value per matrix
    near       a guess, such as last step's value (for all or one per matrix): a close one makes a single pass without
               a copy of |x|, a bad one costs time, never exactness. Used where it pays: on the host, from 2^22 entries
    nonzero    rank only the entries that are not 0 (all zero: the result is 0)
    sample     estimate from this many entries drawn with replacement: the rank of the result is then off by more than e
               with probability at most 2 exp(-2 sample e^2) (Dvoretzky-Kiefer-Wolfowitz), its standard deviation is
               sqrt(q (1-q) / sample). `generator` is torch's, numpy's, or a jax key (required there)

    NaN anywhere gives NaN; inf counts as large; nothing to rank is an error.

    >>> import torch
    >>> quantile_abs(torch.tensor([-3.0, 1.0, -2.0]), 0.75)
    tensor(2.5000)
    >>> quantile_abs(torch.eye(2).expand(4, 2, 2), [0.0, 1.0], dim=(-2, -1)).shape
    torch.Size([2, 4])
    """
    xp = check_floating(x)
    levels = _check_levels(q)
    if is_spread(x):
        if sample is not None:
            raise ValueError(
                "sample is not supported for a DTensor: leave it out, the exact quantile moves only counts"
            )
        inner, outer = _split(x, dim)
        found = [interpolate(select_spread(x, inner, level, nonzero), dtype_name(x)) for level in levels]
        return _shaped(found, q, tuple([x.shape[axis] for axis in outer]), x)
    view, batch = _in_order(x.detach().resolve_neg() if xp is torch else x, dim)
    shape = (math.prod(batch), math.prod(view.shape) // max(math.prod(batch), 1))
    if sample is not None:
        view = _draw(view.reshape(shape), sample, generator)
        shape = tuple(view.shape)
    guess = None if near is None else _check_guess(near, shape[0])
    values = [interpolate(select(view, shape, level, nonzero, guess), dtype_name(x)) for level in levels]
    values = [torch.from_numpy(v) if xp is torch and isinstance(v, np.ndarray) else v for v in values]
    return _shaped(values, q, batch, x)


def _shaped(values: list[Array], q: Any, batch: tuple[int, ...], x: Array) -> Array:
    """One result, or one for each of several q, in the shape of the dimensions that are left."""
    xp = namespace(values[0])
    result = values[0] if is_number(q) or np.ndim(q) == 0 else xp.stack(values)
    return cast(result.reshape((*result.shape[:-1], *batch)), xp.float64 if dtype_name(x) == "float64" else xp.float32)


def interpolate(found: OrderStatistics, name: str) -> Array:
    """The value between the two order statistics: numpy's formula in fp64, and the limit where one of them is inf."""
    xp = namespace(found.low)
    low, high = double(float_of_bits(found.low, name)), double(float_of_bits(found.high, name))
    t = constant(found.fraction, low)
    with quiet(xp):
        step = high - low
        between = xp.where(t < 0.5, low + step * t, high - step * (1 - t))
        between = xp.where(high == float("inf"), high, between)
        value = xp.where((low == high) | (t == 0), low, between)
        return xp.where(found.top > INFINITY_BITS[name], float("nan"), value)


def _check_levels(q: Any) -> list[float]:
    q = q.tolist() if isinstance(q, np.ndarray) else q
    levels = [q] if is_number(q) else list(q) if isinstance(q, Sequence) else None
    if not levels or not all(is_number(level) and 0 <= level <= 1 for level in levels):
        raise ValueError(f"q must be a number in [0, 1] or a non-empty sequence of them, got {q!r}")
    return [float(level) for level in levels]


def _check_guess(near: Any, count: int) -> np.ndarray | None:
    """One guess per row in fp64; None for one on a device or traced: reading it would make the host wait."""
    if type(near).__module__ != "builtins" and not on_host(near):
        return None
    guess = near.detach().double().numpy() if isinstance(near, torch.Tensor) else np.asarray(near, np.float64)
    if guess.size not in (1, count):
        raise ValueError(f"near must be one number or one for each of the {count} rows, got {guess.size}")
    return np.broadcast_to(guess.reshape(-1), (count,))


def _split(x: Array, dim: int | Sequence[int] | None) -> tuple[list[int], list[int]]:
    """The dimensions ranked together, and the others."""
    axes: Any = range(x.ndim) if dim is None else (dim,) if is_number(dim) else dim
    if not isinstance(axes, range | Sequence) or any(not is_number(a) or not -x.ndim <= a < x.ndim for a in axes):
        raise ValueError(f"dim must name dimensions of x, which has {x.ndim}, got {dim}")
    inner = [int(axis) % x.ndim for axis in axes]
    if len(set(inner)) != len(inner):
        raise ValueError(f"dim names a dimension twice: {dim}")
    if math.prod([x.shape[axis] for axis in inner]) == 0:
        raise ValueError(f"cannot take a quantile of no entries: x has shape {tuple(x.shape)}, dim is {dim}")
    return inner, [axis for axis in range(x.ndim) if axis not in inner]


def _in_order(x: Array, dim: int | Sequence[int] | None) -> tuple[Array, tuple[int, ...]]:
    """A view of `x` with the dimensions ranked together last, in the order of memory; and the shape of the others."""
    inner, outer = _split(x, dim)
    batch = tuple([x.shape[axis] for axis in outer])
    if isinstance(x, torch.Tensor):
        return x.permute(*outer, *sorted(inner, key=lambda axis: -x.stride()[axis])), batch
    if isinstance(x, np.ndarray):
        strides: Any = x.strides
        return x.transpose(*outer, *sorted(inner, key=lambda axis: -strides[axis])), batch
    return namespace(x).transpose(x, (*outer, *inner)), batch


def _draw(rows: Array, sample: int, generator: Any) -> Array:
    """`sample` entries of each row, drawn with replacement at the same places in all."""
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
