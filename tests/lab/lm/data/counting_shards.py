"""Shards whose tokens are 0, 1, 2, ..., so that a test can tell by a token where it was read."""

import numpy as np

from entryclip.lab.lm.data.shards import write_shard


def counting_shards(folder, sizes, split="train", first=1):
    """Write shards of the given sizes, each counting on from the one before; return the folder."""
    start = 0
    for i, size in enumerate(sizes, first):
        write_shard(folder / f"{split}_{i:06d}.bin", np.arange(start, start + size).astype(np.uint16))
        start += size
    return folder
