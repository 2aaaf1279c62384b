"""Functions that take a plain tensor or torch's DTensor alike, so that callers need not ask which one they have.

    apply_entrywise   an operator, on each local shard, with the thresholds of the matrices in it
    apply_to_whole    any function of the whole tensor, gathered on every process: for what is small or rare
    map_matrices      a function of whole matrices: each one is gathered on one process and redistributed afterwards
    norms             the Frobenius norm of each matrix, from sums of squares
    match_norms       scale each matrix to the norm of another
    is_finite         whether every entry is finite, on all processes alike
    are_finite        the same of many tensors, with one exchange for all
    local_shard       the part that this process holds
    whole             the whole tensor on every process
    shard_like        a whole tensor, sharded as another one is

All processes of a DTensor's mesh must call these together, also one whose local shard is empty.
"""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .arrays import Array, cast, matrix_axes
from .operators import match_norm

PLAIN = (Tensor, torch.nn.Parameter)  # the types of tensors that are no subclass's


def is_dtensor(x: Array) -> bool:
    """Tell whether `x` is a DTensor, whatever its placements."""
    if type(x) in PLAIN:  # the usual answer, asked for many times in every step
        return False
    module = sys.modules.get("torch.distributed.tensor")  # without this import nobody can have made one
    return module is not None and isinstance(x, module.DTensor)


def whole(x: Any) -> Tensor:
    """Gather all of `x` on every process; a plain tensor is returned as it is."""
    return x.full_tensor() if is_dtensor(x) else x


def shard_like(y: Tensor, x: Any) -> Any:
    """Shard `y`, a whole tensor that every process has, as `x` is sharded; `y` itself where `x` is a plain tensor."""
    if not is_dtensor(x):
        return y
    from torch.distributed.tensor import DTensor, Replicate

    everywhere = [Replicate()] * x.device_mesh.ndim
    return DTensor.from_local(y, x.device_mesh, everywhere, run_check=False).redistribute(placements=x.placements)


def apply_entrywise(operator: Callable[[Array, Any], Array], x: Array, threshold: Array) -> Array:
    """Apply an operator that treats every entry alike, with one threshold per matrix, of shape (..., 1, 1)."""
    if not is_dtensor(x):
        return operator(x, threshold)
    x = resolve_placements(x)
    return from_local(operator(x.to_local(), threshold[local_slices(x)[:-2]] if x.ndim > 2 else threshold), x)


def apply_to_whole(function: Callable[[Array], Array], x: Array) -> Array:
    """Apply `function`, which keeps the shape, to the whole tensor; every process gathers it and computes the same."""
    return shard_like(function(whole(x)), x)


def map_matrices(xs: list[Any], function: Callable[[list[Tensor]], list[Tensor]]) -> list[Any]:
    """Apply `function`, from a list of whole tensors to a list of the same shapes, to tensors of one shape.

    Plain tensors are handed over all at once. Of DTensors, which must have the same placements and be at most as many
    as processes, number i is gathered on process i alone, which hands it over as a list of one: every process works on
    another one, and each entry travels twice.
    """
    if not is_dtensor(xs[0]):
        return function(xs)
    xs = [resolve_placements(x) for x in xs]
    sharded = [i for i, placement in enumerate(xs[0].placements) if placement.is_shard()]
    if len(sharded) != 1 or _is_strided(xs[0].placements[sharded[0]]):
        return [apply_to_whole(lambda x: function([x])[0], x) for x in xs]
    group, dim = xs[0].device_mesh.get_group(sharded[0]), xs[0].placements[sharded[0]].dim
    shards = [x.to_local().movedim(dim, 0) for x in xs]
    owns_one = dist.get_rank(group) < len(xs)
    shape = (xs[0].shape[dim], *shards[0].shape[1:])
    sizes = [math.prod(shape[1:]) * (end - start) for start, end in _chunks(shape[0], dist.get_world_size(group))]
    sent = [shards[0].numel() if i < len(xs) else 0 for i in range(len(sizes))]
    arriving = sizes if owns_one else [0] * len(sizes)
    gathered = _exchange(torch.cat([shard.reshape(-1) for shard in shards]), arriving, sent, group)
    if owns_one:
        gathered = function([gathered.reshape(shape).movedim(0, dim)])[0].movedim(dim, 0).reshape(-1)
    back = _exchange(gathered, sent, arriving, group).reshape(len(xs), *shards[0].shape)
    return [from_local(shard.movedim(0, dim), x) for shard, x in zip(back, xs, strict=True)]


def norms(x: Any) -> Tensor:
    """Return the Frobenius norm of each matrix of a tensor, in fp64, of shape (..., 1, 1), on every process."""
    axes = matrix_axes(x)
    if not is_dtensor(x):
        return torch.linalg.vector_norm(x.double(), dim=axes, keepdim=True) if axes else x.double().abs()
    x = resolve_placements(x)
    local = x.to_local().double().square()
    squares = torch.zeros([*x.shape[:-2], *(1 for _ in axes)], dtype=torch.float64, device=local.device)
    squares[local_slices(x)[:-2]] = local.sum(axes, keepdim=True) if axes else local
    all_reduce(squares, dist.ReduceOp.SUM, shard_groups(x))
    return squares.sqrt()


def match_norms(y: Array, x: Array) -> Array:
    """Scale each matrix of `y` to the Frobenius norm of `x`'s; unchanged where either norm is 0 or not finite."""
    if not is_dtensor(x) or 0 in x.shape:
        return match_norm(y, x)
    factor = norms(x) / norms(y)
    return apply_entrywise(_times, y, torch.where(factor.isfinite() & (factor > 0), factor, 1.0))


def is_finite(x: Any) -> bool:
    """Tell whether all entries of a tensor are finite; all processes get the same answer."""
    return bool(whole(torch.isfinite(x).all()))


def are_finite(xs: list[Any]) -> bool:
    """Tell whether all entries of all tensors are finite, with one exchange for those that share their processes.

    The host waits once for each device, not for each tensor.
    """
    found: dict[Any, tuple[list[Any], list[Tensor]]] = {}
    for x in xs:
        x = resolve_placements(x) if is_dtensor(x) else x
        over, local = shard_groups(x), local_shard(x)
        key = (local.device, *map(id, over))
        found.setdefault(key, (over, []))[1].append(torch.isfinite(local).all())
    finite = True
    for over, each in found.values():
        worst = torch.stack(each).all().int()
        all_reduce(worst, dist.ReduceOp.MIN, over)
        finite &= bool(worst)
    return finite


def local_shard(x: Any) -> Any:
    """Return the part of a tensor that this process holds, sharing its memory; a plain tensor as it is."""
    return x.to_local() if is_dtensor(x) else x


def local_shards(xs: Sequence[Any]) -> Sequence[Any]:
    """Return the local shards of several tensors; the sequence itself where all of them are plain."""
    return xs if set(map(type, xs)) <= set(PLAIN) else [local_shard(x) for x in xs]


def shard_groups(x: Any) -> list[Any]:
    """Return the process groups over which `x` is sharded; none for a plain or replicated tensor."""
    if not is_dtensor(x):
        return []
    return [x.device_mesh.get_group(i) for i, placement in enumerate(x.placements) if placement.is_shard()]


def shard_count(x: Any) -> int:
    """Return the number of processes of the largest group over which `x` is sharded; 1 where it is not."""
    return max((group.size() for group in shard_groups(x)), default=1)


def local_slices(x: Any) -> tuple[slice, ...]:
    """Return where this process's local shard lies in the whole tensor, one slice per dimension."""
    ends = [(0, side) for side in x.shape]
    for i, placement in enumerate(x.placements):
        if placement.is_shard():
            start, end = ends[placement.dim]
            cut = _chunks(end - start, x.device_mesh.size(i))[x.device_mesh.get_local_rank(i)]
            ends[placement.dim] = (start + cut[0], start + cut[1])
    return tuple(slice(*pair) for pair in ends)


def resolve_placements(x: Any) -> Any:
    """Redistribute a DTensor with pending sums or strided shards, so that its local shards are contiguous slices."""
    if is_sliced(x):
        return x
    from torch.distributed.tensor import Replicate

    return x.redistribute(placements=[Replicate()] * x.device_mesh.ndim)


def is_sliced(x: Any) -> bool:
    """Tell whether the local shards of a DTensor are slices of the whole: no pending sums, no strided shards."""
    return all(p.is_replicate() or (p.is_shard() and not _is_strided(p)) for p in x.placements)


def all_reduce(x: Tensor, operation: Any, over: list[Any]) -> None:
    """Reduce `x` in place over several process groups, one after the other."""
    for group in over:
        dist.all_reduce(x, operation, group=group)


def _chunks(side: int, count: int) -> list[tuple[int, int]]:
    """Return the cuts of torch.chunk, followed by empty ones up to `count`."""
    size = -(-side // count)
    return [(min(i * size, side), min((i + 1) * size, side)) for i in range(count)]


def _is_strided(placement: Any) -> bool:
    from torch.distributed.tensor import Shard

    return type(placement) is not Shard


def from_local(local: Tensor, x: Any) -> Any:
    """Return the DTensor with this local shard and the shape and placements of `x`."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local.contiguous(), x.device_mesh, x.placements, run_check=False, shape=x.shape, stride=x.stride()
    )


def _exchange(x: Tensor, arriving: list[int], sent: list[int], group: Any) -> Tensor:
    received = x.new_empty(sum(arriving))
    dist.all_to_all_single(received, x.contiguous(), arriving, sent, group=group)
    return received


def _times(x: Array, factor: Array) -> Array:
    return cast(x * factor, x.dtype)
