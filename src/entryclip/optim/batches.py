"""Which parameters of a group are stepped together: as many as share their operations, in bounded memory.

A step over a list of tensors costs a few operations for all of them, not for each: on a device every operation is a
launch, and on a CPU a small tensor costs far more to call for than to compute. The temporaries of a step grow with the
list, so a batch has a bounded number of entries. On a CPU that bound is small: what leaves the cache is faster alone.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..arrays import on_device
from ..dtensor import is_dtensor, shard_count, shard_groups
from .foreach import is_ordinary

DEVICE_ENTRIES = 1 << 26  # entries stepped together on a device: each temporary takes up to 256 MB in fp32
CACHED_ENTRIES = 1 << 17  # the same on a CPU, as many as its cache holds


def batches(params: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the parameters in batches of one kind and a bounded number of entries; a larger one comes alone.

    A batch never mixes devices, dtypes, or tensors that are sharded differently. While torch.compile traces, each
    parameter comes alone: the compiler combines operations itself.
    """
    alike: dict[Any, list[Tensor]] = {}
    for p in params:
        alike.setdefault(_kind(p), []).append(p)
    for kind, same in alike.items():
        if kind is None:
            yield from ([p] for p in same)
        else:
            limit = DEVICE_ENTRIES if on_device(same[0]) or is_dtensor(same[0]) else CACHED_ENTRIES
            yield from cut(sorted(same, key=local_entries), limit)  # equal sizes side by side: they share a stack


def cut(params: list[Tensor], limit: int) -> Iterator[list[Tensor]]:
    """Cut a list of parameters, in its order, into lists of at most `limit` entries, or of one parameter."""
    batch: list[Tensor] = []
    room = limit
    for p in params:
        size = local_entries(p)
        if batch and size > room:
            yield batch
            batch, room = [], limit
        batch.append(p)
        room -= size
    yield batch


def local_entries(p: Tensor) -> int:
    """Return the number of entries that a process holds, for a DTensor the same number on all processes."""
    return -(-p.numel() // shard_count(p)) if is_dtensor(p) else p.numel()


def _kind(p: Tensor) -> Any:
    """Return what the parameters of a batch have in common; None for one that is stepped alone."""
    if is_dtensor(p) and not torch.compiler.is_compiling():
        return p.device, p.dtype, *map(id, shard_groups(p))
    return (p.device, p.dtype) if is_ordinary(p) else None
