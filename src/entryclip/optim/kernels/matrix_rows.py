"""Where the matrices of a parameter lie in the memory that this process has of it."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...dtensor import is_dtensor, local_shard, local_slices
from ...layout import Layout


class MatrixRows(NamedTuple):
    """The matrices of one parameter, also those of which this process has no entry."""

    start: NDArray[np.int64]  # the first entry of each in the local shard
    size: NDArray[np.int64]  # how many entries of each are there
    total: int  # how many entries each has on all processes


def matrix_rows(w: Any, layout: Layout | None) -> MatrixRows:
    """Return the matrices of a contiguous tensor, or of a DTensor by its local shard.

    Without a layout all entries count as one. A layout in blocks is for plain tensors only: a block may lie across
    several shards.
    """
    here = local_shard(w).numel()
    if layout is None:
        return MatrixRows(np.zeros(1, np.int64), np.array([here], np.int64), here)
    batch = layout.shape(w.shape)[:-2]
    count = math.prod(batch)
    mine = np.arange(count, dtype=np.int64)
    if is_dtensor(w) and batch:
        mine = mine.reshape(batch)[local_slices(w)[: len(batch)]].ravel()
    start, size = np.zeros(count, np.int64), np.zeros(count, np.int64)
    if len(mine):
        size[mine] = here // len(mine)
        start[mine] = np.arange(len(mine)) * (here // len(mine))
    return MatrixRows(start, size, w.numel() // max(count, 1))
