"""Tensors spread over processes, torch's DTensor: every process works on its own piece, and they exchange counts.

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


def is_spread(x: Array) -> bool:
    """Whether `x` is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")  # where it was not imported there are none
    return module is not None and isinstance(x, module.DTensor)


def whole(x: Any) -> Tensor:
    """All of `x` on every process; a plain tensor as it is."""
    return x.full_tensor() if is_spread(x) else x


def entrywise(operator: Callable[[Tensor, Any], Tensor], x: Any, threshold: Tensor) -> Any:
    """An operator that treats every entry alike, on this process's piece of `x`; one threshold per matrix."""
    x = settled(x)
    return _like(operator(x.to_local(), threshold[piece(x)[:-2]] if x.ndim > 2 else threshold), x)


def norms(x: Any) -> Tensor:
    """The Frobenius norm of each matrix of `x`, in fp64, of shape (..., 1, 1), on every process."""
    x = settled(x)
    axes = matrix_axes(x)
    squares = torch.zeros([*x.shape[:-2], *(1 for _ in axes)], dtype=torch.float64, device=x.to_local().device)
    squares[piece(x)[:-2]] = (
        x.to_local().double().square().sum(axes, keepdim=True) if axes else x.to_local().double() ** 2
    )
    all_reduce(squares, dist.ReduceOp.SUM, groups(x))
    return squares.sqrt()


def by_owner(xs: list[Any], function: Callable[[Tensor], Tensor]) -> list[Any]:
    """`function` of each whole tensor, at most one for each process, all of one shape and placement.

    Tensor i is gathered on process i alone: every process works on another one, and each entry travels twice.
    """
    xs = [settled(x) for x in xs]
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


def settled(x: Any) -> Any:
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


def all_reduce(x: Tensor, operation: Any, over: list[Any]) -> None:
    for group in over:
        dist.all_reduce(x, operation, group=group)
