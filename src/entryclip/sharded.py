"""Tensors spread over processes, torch's DTensor: every process works on its own piece, and they exchange counts.

    select_spread    order statistics by counting bit patterns in 2^11 bins, 11 bits at a time: the entries stay where
                     they are, the answer is the unsharded one to the bit
    entrywise        an operator on each piece, with the thresholds of the matrices in it
    norms            of each matrix, from sums of squares
    by_owner         a function of whole matrices: each is sent to one process, worked on there, and sent back
    on_whole         the same on every process, for what is small or seldom

All processes must call these together, also one whose piece is empty.
"""

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .arrays import Array, matrix_axes
from .selection import OrderStatistics, magnitude_bits, position

_DIGIT = 11  # bits counted at a time


def is_spread(x: Array) -> bool:
    """Whether `x` is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")  # where it was not imported there are none
    return module is not None and isinstance(x, module.DTensor)


def whole(x: Any) -> Tensor:
    """All of `x` on every process; a plain tensor as it is."""
    return x.full_tensor() if is_spread(x) else x


def select_spread(x: Any, inner: list[int], q: float, nonzero: bool) -> OrderStatistics:
    """As `selection.select`, of a DTensor, ranked over the dimensions `inner`, on every process."""
    x = _settled(x)
    outer = [axis for axis in range(x.ndim) if axis not in inner]
    batch, n = [x.shape[axis] for axis in outer], math.prod([x.shape[axis] for axis in inner])
    local = x.to_local().detach()
    mine = tuple(piece(x)[axis] for axis in outer)
    bits = magnitude_bits(local.permute(*outer, *inner).contiguous())
    bits = bits.reshape(math.prod([local.shape[axis] for axis in outer]), -1 if local.numel() else 0)
    rows = torch.arange(math.prod(batch), device=bits.device).reshape(batch)[mine].reshape(-1)
    return _by_digits(bits, rows, math.prod(batch), n, q, nonzero, groups(x))


def entrywise(operator: Callable[[Tensor, Any], Tensor], x: Any, threshold: Tensor) -> Any:
    """An operator that treats every entry alike, on this process's piece of `x`; one threshold per matrix."""
    x = _settled(x)
    return _like(operator(x.to_local(), threshold[piece(x)[:-2]] if x.ndim > 2 else threshold), x)


def norms(x: Any) -> Tensor:
    """The Frobenius norm of each matrix of `x`, in fp64, of shape (..., 1, 1), on every process."""
    x = _settled(x)
    axes = matrix_axes(x)
    squares = torch.zeros([*x.shape[:-2], *(1 for _ in axes)], dtype=torch.float64, device=x.to_local().device)
    squares[piece(x)[:-2]] = (
        x.to_local().double().square().sum(axes, keepdim=True) if axes else x.to_local().double() ** 2
    )
    _reduce(squares, dist.ReduceOp.SUM, groups(x))
    return squares.sqrt()


def by_owner(xs: list[Any], function: Callable[[Tensor], Tensor]) -> list[Any]:
    """`function` of each whole tensor, at most one for each process, all of one shape and placement.

    Tensor i is gathered on process i alone: every process works on another one, and each entry travels twice.
    """
    xs = [_settled(x) for x in xs]
    spread = [i for i, placement in enumerate(xs[0].placements) if placement.is_shard()]
    if len(spread) != 1 or _is_strided(xs[0].placements[spread[0]]):
        return [on_whole(function, x) for x in xs]
    group, dim = xs[0].device_mesh.get_group(spread[0]), xs[0].placements[spread[0]].dim
    pieces = [x.to_local().movedim(dim, 0) for x in xs]
    owned = dist.get_rank(group) < len(xs)
    shape = (xs[0].shape[dim], *pieces[0].shape[1:])
    cuts = [math.prod(shape[1:]) * (end - start) for start, end in _chunks(shape[0], dist.get_world_size(group))]
    sent = [pieces[0].numel() if i < len(xs) else 0 for i in range(len(cuts))]
    arriving = cuts if owned else [0] * len(cuts)
    gathered = _exchange(torch.cat([p.reshape(-1) for p in pieces]), arriving, sent, group)
    if owned:
        gathered = function(gathered.reshape(shape).movedim(0, dim)).movedim(dim, 0).reshape(-1)
    back = _exchange(gathered, sent, arriving, group).reshape(len(xs), *pieces[0].shape)
    return [_like(part.movedim(0, dim), x) for part, x in zip(back, xs, strict=True)]


def on_whole(function: Callable[[Tensor], Tensor], x: Any) -> Any:
    """`function` of the whole tensor, gathered and worked on by every process."""
    return spread_like(function(whole(x)), x)


def spread_like(y: Tensor, x: Any) -> Any:
    """The whole tensor `y`, which every process has, spread as `x` is."""
    from torch.distributed.tensor import DTensor, Replicate

    everywhere = [Replicate()] * x.device_mesh.ndim
    return DTensor.from_local(y, x.device_mesh, everywhere, run_check=False).redistribute(placements=x.placements)


def groups(x: Any) -> list[Any]:
    """The groups of processes over which the entries of `x` are spread."""
    return [x.device_mesh.get_group(i) for i, placement in enumerate(x.placements) if placement.is_shard()]


def piece(x: Any) -> tuple[slice, ...]:
    """Where this process's piece lies in the whole, dimension by dimension."""
    ends = [(0, side) for side in x.shape]
    for i, placement in enumerate(x.placements):
        if placement.is_shard():
            start, end = ends[placement.dim]
            cut = _chunks(end - start, x.device_mesh.size(i))[x.device_mesh.get_local_rank(i)]
            ends[placement.dim] = (start + cut[0], start + cut[1])
    return tuple(slice(*pair) for pair in ends)


def _chunks(side: int, count: int) -> list[tuple[int, int]]:
    """The cuts of torch.chunk, with empty ones at the end."""
    size = -(-side // count)
    return [(min(i * size, side), min((i + 1) * size, side)) for i in range(count)]


def _settled(x: Any) -> Any:
    """`x` with every entry in one place: pending sums done, and interleaved pieces gathered."""
    if all(p.is_replicate() or (p.is_shard() and not _is_strided(p)) for p in x.placements):
        return x
    from torch.distributed.tensor import Replicate

    return x.redistribute(placements=[Replicate()] * x.device_mesh.ndim)


def _is_strided(placement: Any) -> bool:
    from torch.distributed.tensor import Shard

    return type(placement) is not Shard


def _like(local: Tensor, x: Any) -> Any:
    """A piece as part of a tensor spread as `x` is."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local.contiguous(), x.device_mesh, x.placements, run_check=False, shape=x.shape, stride=x.stride()
    )


def _exchange(x: Tensor, arriving: list[int], sent: list[int], group: Any) -> Tensor:
    received = x.new_empty(sum(arriving))
    dist.all_to_all_single(received, x.contiguous(), arriving, sent, group=group)
    return received


def _by_digits(
    bits: Tensor, rows: Tensor, count: int, n: int, q: float, nonzero: bool, over: list[Any]
) -> OrderStatistics:
    """Radix selection, the most significant digit first: `bits` are this process's entries of the rows `rows`."""
    bins, exact = 1 << _DIGIT, torch.int32 if n < 2**31 else torch.int64
    rank: Any = None
    fraction: Any = None
    found = torch.zeros(count, dtype=torch.int64, device=bits.device)
    size = torch.zeros_like(found)
    for shift in reversed(range(0, 8 * bits.element_size() - 1, _DIGIT)):
        here = (bits >> shift >> _DIGIT) == found[rows][:, None]
        counts = torch.zeros(count, bins + 1, dtype=exact, device=bits.device)
        counts[rows, :bins] = _histogram((bits >> shift) & (bins - 1), here, bins).to(exact)
        if rank is None:
            counts[rows, bins] = (bits == 0).sum(-1).to(exact)
        _reduce(counts, dist.ReduceOp.SUM, over)
        if rank is None:
            ranks, fraction = position(q, n, counts[:, bins].long() if nonzero else None)
            rank = torch.as_tensor(ranks, device=bits.device).expand(count)
        upto = counts[:, :bins].long().cumsum(-1)
        digit = (upto <= rank[:, None]).sum(-1)
        size = counts.gather(-1, digit[:, None])[:, 0].long()
        rank = rank - (upto.gather(-1, digit[:, None])[:, 0] - size)
        found = found << _DIGIT | digit
    beyond, top = _neighbours(bits, rows, found, over)
    tied = (rank + 1 < size) | (found == top)
    low = found.to(bits.dtype)
    return OrderStatistics(low, torch.where(tied, found, beyond).to(bits.dtype), top.to(bits.dtype), fraction)


def _histogram(digits: Tensor, here: Tensor, bins: int) -> Tensor:
    """How often each digit occurs in each row, among the entries that are `here`."""
    place = digits + bins * torch.arange(len(digits), device=digits.device)[:, None]
    if digits.device.type == "cpu":
        return torch.bincount(place[here], minlength=bins * len(digits)).reshape(len(digits), bins)
    counts = torch.zeros(bins * len(digits), dtype=torch.int64, device=digits.device)
    return counts.scatter_add_(0, place.reshape(-1).long(), here.reshape(-1).long()).reshape(len(digits), bins)


def _neighbours(bits: Tensor, rows: Tensor, found: Tensor, over: list[Any]) -> tuple[Tensor, Tensor]:
    """The smallest number above the one found, and the largest of all, in each row."""
    largest = torch.iinfo(torch.int64).max
    both = torch.stack([torch.full_like(found, largest), torch.zeros_like(found)])  # next up, and minus the largest
    if bits.numel():
        both[0, rows] = torch.where(bits > found[rows][:, None], bits.long(), largest).amin(-1)
        both[1, rows] = -bits.amax(-1).long()
    _reduce(both, dist.ReduceOp.MIN, over)
    return both[0], -both[1]


def _reduce(x: Tensor, operation: Any, over: list[Any]) -> None:
    for group in over:
        dist.all_reduce(x, operation, group=group)
