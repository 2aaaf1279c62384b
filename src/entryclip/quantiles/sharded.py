"""Order statistics of a DTensor by radix selection: processes exchange counts, the entries stay where they are.

The magnitudes' bit patterns are counted in 2^11 bins, 11 bits at a time, most significant first, and the counts are
summed over the processes: the result equals the unsharded one to the bit. All processes must call this together, also
one whose local shard is empty.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..dtensor import all_reduce, local_slices, resolve_placements, shard_groups
from .order import OrderStatistics, magnitude_bits, position

_DIGIT = 11  # bits counted at a time


def select_sharded(x: Any, inner: list[int], q: float, nonzero: bool) -> OrderStatistics:
    """Find the order statistics of a DTensor, ranked over the dimensions `inner`; every process gets them."""
    x = resolve_placements(x)
    outer = [axis for axis in range(x.ndim) if axis not in inner]
    batch, n = [x.shape[axis] for axis in outer], math.prod([x.shape[axis] for axis in inner])
    local = x.to_local().detach()
    mine = tuple(local_slices(x)[axis] for axis in outer)
    bits = magnitude_bits(local.permute(*outer, *inner).contiguous())
    bits = bits.reshape(math.prod([local.shape[axis] for axis in outer]), -1 if local.numel() else 0)
    rows = torch.arange(math.prod(batch), device=bits.device).reshape(batch)[mine].reshape(-1)
    return _by_digits(bits, rows, math.prod(batch), n, q, nonzero, shard_groups(x))


def _by_digits(
    bits: Tensor, rows: Tensor, count: int, n: int, q: float, nonzero: bool, over: list[Any]
) -> OrderStatistics:
    """Select digit by digit, the most significant first: `bits` are this process's entries of the rows `rows`."""
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
        all_reduce(counts, dist.ReduceOp.SUM, over)
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
    """Count how often each digit occurs in each row, among the entries where `here` is True."""
    place = digits + bins * torch.arange(len(digits), device=digits.device)[:, None]
    if digits.device.type == "cpu":
        return torch.bincount(place[here], minlength=bins * len(digits)).reshape(len(digits), bins)
    counts = torch.zeros(bins * len(digits), dtype=torch.int64, device=digits.device)
    return counts.scatter_add_(0, place.reshape(-1).long(), here.reshape(-1).long()).reshape(len(digits), bins)


def _neighbours(bits: Tensor, rows: Tensor, found: Tensor, over: list[Any]) -> tuple[Tensor, Tensor]:
    """Return the smallest number above the one found, and the largest of all, in each row."""
    largest = torch.iinfo(torch.int64).max
    both = torch.stack([torch.full_like(found, largest), torch.zeros_like(found)])  # next up, and minus the largest
    if bits.numel():
        both[0, rows] = torch.where(bits > found[rows][:, None], bits.long(), largest).amin(-1)
        both[1, rows] = -bits.amax(-1).long()
    all_reduce(both, dist.ReduceOp.MIN, over)
    return both[0], -both[1]
