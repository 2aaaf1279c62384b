"""Order statistics of a DTensor by radix selection: processes exchange counts, the entries stay where they are.

The counts that digits.py takes of each digit are summed over the processes: the result equals the unsharded one to the
bit. All processes must call this together, also one whose local shard is empty.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..dtensor import all_reduce, local_slices, resolve_placements, shard_groups
from .digits import Rows, select_by_digits
from .order import OrderStatistics, magnitude_bits


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
    return select_by_digits(bits, _ShardedRows(math.prod(batch), n, rows, shard_groups(x)), q, nonzero)


class _ShardedRows(Rows):
    """Rows that are spread over processes: `mine`, (rows,), are the ones of which this process has entries."""

    def __init__(self, count: int, n: int, mine: Tensor, over: list[Any]):
        super().__init__(count, n)
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
