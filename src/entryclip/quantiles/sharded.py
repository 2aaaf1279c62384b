"""Order statistics of a DTensor by radix selection: processes exchange counts, the entries stay where they are.

The counts that digits.py takes of each digit are summed over the processes: the result equals the unsharded one to the
bit. All processes must call this together, also one whose local shard is empty.
"""

import itertools
import math
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..arrays import dtype_name, matrix_axes, wide_dtype
from ..dtensor import all_reduce, local_slices, resolve_placements, shard_groups
from .digits import Rows, joined, row_lengths, select_by_digits
from .order import OrderStatistics, interpolate, magnitude_bits


def select_sharded(xs: list[Any], inner: list[list[int]], q: float, nonzero: bool) -> OrderStatistics:
    """Find the order statistics of DTensors, ranked over the dimensions `inner` of each; every process gets them.

    The rows of all of them stand below each other. They must be sharded over the same processes, and several of them
    need `nonzero`. However many they are, their counts travel together.
    """
    xs = [resolve_placements(x) for x in xs]
    parts = [_local_rows(x, axes) for x, axes in zip(xs, inner, strict=True)]
    starts = itertools.accumulate((part.total for part in parts), initial=0)
    mine = joined([part.mine + start for part, start in zip(parts, starts, strict=False)])
    blocks = [part.bits for part in parts]
    count, n = sum(part.total for part in parts), row_lengths([(part.total, part.n) for part in parts], blocks[0])
    rows = _ShardedRows(count, n, max(part.n for part in parts), mine, shard_groups(xs[0]))
    return select_by_digits(blocks, rows, q, nonzero)


def ranked_shards(xs: list[Any], q: float | None) -> Tensor:
    """Return the q-quantile of the non-zero |entries| of each matrix of some DTensors, (matrices, 1, 1); 0 for None.

    The DTensors, (..., m, n) each, have one dtype and are sharded over the same processes.
    """
    wide = wide_dtype(xs[0])
    if q is None:
        count = sum(math.prod(x.shape[:-2]) for x in xs)
        return torch.zeros(count, 1, 1, dtype=wide, device=xs[0].device)
    axes = [[axis % x.ndim for axis in matrix_axes(x)] for x in xs]
    return interpolate(select_sharded(xs, axes, q, True), dtype_name(xs[0])).to(wide)[:, None, None]


class _LocalRows(NamedTuple):
    """The entries of a DTensor that this process has, as rows of the dimensions that are ranked together."""

    bits: Tensor  # (rows, entries): the magnitudes at hand
    mine: Tensor  # (rows,): which of all rows these are
    total: int  # the number of all rows
    n: int  # entries of a row on all processes


def _local_rows(x: Any, inner: list[int]) -> _LocalRows:
    outer = [axis for axis in range(x.ndim) if axis not in inner]
    batch, n = [x.shape[axis] for axis in outer], math.prod([x.shape[axis] for axis in inner])
    local = x.to_local().detach()
    here = tuple(local_slices(x)[axis] for axis in outer)
    bits = magnitude_bits(local.permute(*outer, *inner).contiguous())
    bits = bits.reshape(math.prod([local.shape[axis] for axis in outer]), -1 if local.numel() else 0)
    mine = torch.arange(math.prod(batch), device=bits.device).reshape(batch)[here].reshape(-1)
    return _LocalRows(bits, mine, math.prod(batch), n)


class _ShardedRows(Rows):
    """Rows that are spread over processes: `mine`, (rows,), are the ones of which this process has entries."""

    def __init__(self, count: int, n: Any, most: int, mine: Tensor, over: list[Any]):
        super().__init__(count, n, most)
        self.mine, self.over = mine, over

    def local(self, x: Tensor) -> Tensor:
        return x[self.mine]

    def total(self, counts: Tensor) -> Tensor:
        return self._reduced(counts, 0, dist.ReduceOp.SUM)

    def smallest(self, values: Tensor) -> Tensor:
        # Wide integers: not every backend reduces those of 16 bits.
        return self._reduced(values.long(), torch.iinfo(values.dtype).max, dist.ReduceOp.MIN).to(values.dtype)

    def _reduced(self, x: Tensor, neutral: int, operation: Any) -> Tensor:
        """Place `x`, (rows, k), among all rows, the others `neutral`, and reduce it over the processes."""
        whole = x.new_full((self.count, x.shape[1]), neutral)
        whole[self.mine] = x
        all_reduce(whole, operation, self.over)
        return whole
