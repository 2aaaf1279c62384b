"""Batches of token sequences, in an order that depends on the seed alone and not on the number of processes."""

from collections.abc import Iterator
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from .shards import Tokens


class BatchOrder(TypedDict):
    """The parameters of an order of batches: streams with equal parameters give the same batches."""

    sequences: int
    length: int
    seed: int | None
    data: str  # the fingerprint of the tokens


class BatchesState(BatchOrder):
    """The state of `Batches` in a checkpoint."""

    position: int


class Batches:
    """An iterator over batches (tokens, targets), each int64 of shape (sequences / processes, length).

    Targets are the next tokens. Iteration ends with the last whole batch, so no token is seen twice. A stream that was
    saved by `state_dict` continues at the same batch, on any number of processes.

    sequences   number of sequences in the whole batch, over all processes: process `rank` gets its part of it
    seed        shuffles the sequences; None: in the order of the shards
    position    number of the first batch

    >>> import tempfile
    >>> from pathlib import Path
    >>> from entryclip.lab.lm.data.shards import write_shard
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = write_shard(folder / "train_000001.bin", np.arange(12, dtype=np.uint16))
    >>> batches = Batches(Tokens.open(folder, "train", vocabulary=12), sequences=2, length=2)
    >>> [tokens.tolist() for tokens, targets in batches]
    [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    """

    def __init__(
        self,
        tokens: Tokens,
        *,
        sequences: int,
        length: int,
        seed: int | None = None,
        rank: int = 0,
        processes: int = 1,
        position: int = 0,
    ) -> None:
        if sequences < 1 or length < 1:
            raise ValueError(f"sequences and length must be at least 1, got {sequences} and {length}")
        if processes < 1 or sequences % processes or not 0 <= rank < processes:
            raise ValueError(f"{sequences} sequences do not divide over {processes} processes (this is {rank})")
        self.tokens, self.length, self.sequences, self.seed = tokens, length, sequences, seed
        self._part = slice(rank * sequences // processes, (rank + 1) * sequences // processes)
        rows = (len(tokens) - 1) // length  # the last token is only a target
        self._count = rows // sequences
        if not self._count:
            need = sequences * length + 1
            raise ValueError(f"too little data: one batch takes {need} tokens, there are {len(tokens)}")
        self._order = None if seed is None else np.random.default_rng(seed).permutation(rows)
        self.position = self._check_position(position)

    def __len__(self) -> int:
        """Number of batches in one pass over the data."""
        return self._count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        if self.position >= len(self):
            raise StopIteration
        rows = np.arange(self.position * self.sequences, (self.position + 1) * self.sequences)[self._part]
        if self._order is not None:
            rows = self._order[rows]
        found = np.stack([self.tokens.read(row * self.length, (row + 1) * self.length + 1) for row in rows])
        self.position += 1
        both = torch.from_numpy(found.astype(np.int64))
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()

    def state_dict(self) -> BatchesState:
        """Return the position and the order; equal on every process."""
        return {"position": self.position, **self._order_record()}

    def load_state_dict(self, state: BatchesState) -> None:
        """Continue where `state_dict` was taken; a state of other data or of another order is refused."""
        for name, value in self._order_record().items():
            if (then := state.get(name)) != value:
                raise ValueError(f"the batches have changed: {name} was {then!r}, now it is {value!r}")
        self.position = self._check_position(state["position"])

    def _order_record(self) -> BatchOrder:
        data = self.tokens.fingerprint()
        return {"sequences": self.sequences, "length": self.length, "seed": self.seed, "data": data}

    def _check_position(self, position: int) -> int:
        if not 0 <= position <= len(self):
            raise ValueError(f"position must be a batch, 0 to {len(self)}, got {position}")
        return position
