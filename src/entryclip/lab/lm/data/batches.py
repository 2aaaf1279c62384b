"""Shards of tokens, and batches from them.

A shard is 256 little-endian int32 (20240520, 1, number of tokens, zeros), then the tokens as uint16: the format of the
paper's data. Shards of a folder are called `train_000001.bin`, `val_000000.bin`, or with a word in front, as
`fineweb_val_000000.bin`.
"""

import hashlib
import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...engine.files import write_bytes
from .manifest import recorded_lengths

MAGIC, VERSION, HEADER = 20240520, 1, 256
_NAME = re.compile(r"(?:.*_)?(train|val)_(\d{6})\.bin")


def write_shard(path: Path, tokens: NDArray[np.uint16]) -> str:
    """Write a shard whole or not at all; returns its SHA-256."""
    if tokens.dtype != np.uint16 or tokens.ndim != 1 or not tokens.size:
        raise ValueError(f"a shard takes a vector of uint16 tokens, got {tokens.dtype} of shape {tokens.shape}")
    header = np.zeros(HEADER, "<i4")
    header[:3] = MAGIC, VERSION, len(tokens)
    data = header.tobytes() + tokens.astype("<u2", copy=False).tobytes()
    write_bytes(path, data)
    return hashlib.sha256(data).hexdigest()


def read_shard(path: Path) -> NDArray[np.uint16]:
    """The tokens of a shard, by memory map. A file that is not a whole shard is named and refused."""
    size = path.stat().st_size
    if size < 4 * HEADER:
        raise ValueError(f"{path} is not a shard: it has {size} bytes, a header alone {4 * HEADER}")
    magic, version, count = (int(x) for x in np.fromfile(path, "<i4", count=3))
    if magic != MAGIC:
        raise ValueError(
            f"{path} is not a shard of tokens: it starts with {magic}, not {MAGIC}; prepare the data again"
        )
    if version != VERSION:
        raise ValueError(
            f"{path} is a shard of version {version}, this reads version {VERSION}: prepare the data again"
        )
    if count < 1 or size != 4 * HEADER + 2 * count:
        whole = 4 * HEADER + 2 * count
        raise ValueError(
            f"{path} is damaged: {count} tokens make {whole} bytes, it has {size}; fetch or prepare it again"
        )
    return np.memmap(path, "<u2", mode="r", offset=4 * HEADER, shape=(count,))


def find_shards(folder: Path, split: str) -> list[Path]:
    """The shards of a split, `train` or `val`, in order; a gap in their numbers is refused."""
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}: make it by `entryclip data prepare --out {folder}`")
    found: dict[int, Path] = {}
    for path in folder.iterdir():
        if (match := _NAME.fullmatch(path.name)) and match[1] == split:
            if int(match[2]) in found:
                raise ValueError(f"{folder} mixes data sets: both {found[int(match[2])].name} and {path.name}")
            found[int(match[2])] = path
    if not found:
        raise FileNotFoundError(f"no {split} shards in {folder}: make them by `entryclip data prepare --out {folder}`")
    first, last = min(found), max(found)
    if missing := set(range(first, last + 1)) - found.keys():
        raise FileNotFoundError(f"{folder} lacks the {split} shard number {min(missing)}: fetch or prepare it again")
    return [found[i] for i in range(first, last + 1)]


def _split(name: str) -> str:
    match = _NAME.fullmatch(name)
    return match[1] if match else ""


class Tokens:
    """All shards of a split as one long vector that is read where it is needed.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = write_shard(folder / "train_000001.bin", np.arange(5, dtype=np.uint16))
    >>> _ = write_shard(folder / "train_000002.bin", np.arange(5, 8, dtype=np.uint16))
    >>> tokens = Tokens.of(folder, "train", vocabulary=8)
    >>> len(tokens), tokens.read(3, 7).tolist()
    (8, [3, 4, 5, 6])
    """

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self._shards = [read_shard(path) for path in paths]
        self._starts = np.cumsum([0, *(len(shard) for shard in self._shards)])

    @classmethod
    def of(cls, folder: Path, split: str, *, vocabulary: int) -> "Tokens":
        """The `train` or `val` shards of a folder, every token of them known to be in the vocabulary.

        Shards that the folder's manifest lists were within its vocabulary when they were written, so where that is
        enough only their length is checked here; `manifest.load_manifest` checks every byte. Shards that it does not
        list may be of another tokenizer and are refused. Without a manifest, or with one of a larger vocabulary,
        shards are read through, and a token beyond the vocabulary is named.
        """
        tokens = cls(find_shards(folder, split))
        known = recorded_lengths(folder, vocabulary)
        tokens._check_listed({name: length for name, length in known.items() if _split(name) == split})
        tokens.check_vocabulary(vocabulary, known)
        return tokens

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, start: int, stop: int) -> NDArray[np.uint16]:
        """The tokens from `start` to `stop`, over the borders of shards."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"tokens {start} to {stop} are not within the {len(self)} there are")
        parts = []
        for shard, first in zip(self._shards, self._starts, strict=False):
            if first < stop and start < first + len(shard):
                parts.append(shard[max(start - first, 0) : stop - first])
        return np.concatenate(parts) if parts else np.empty(0, np.uint16)

    def _check_listed(self, recorded: Mapping[str, int]) -> None:
        folder, there = self.paths[0].parent, {path.name for path in self.paths}
        if missing := sorted(recorded.keys() - there):
            raise FileNotFoundError(f"{folder / missing[0]} is missing, the manifest lists it: prepare the data again")
        if recorded and (foreign := sorted(there - recorded.keys())):
            raise ValueError(
                f"{folder / foreign[0]} is not in the manifest, and may be of another tokenizer: move it away"
            )
        for path, shard in zip(self.paths, self._shards, strict=True):
            if (expected := recorded.get(path.name, len(shard))) != len(shard):
                raise ValueError(
                    f"{path} has {len(shard)} tokens, by the manifest it had {expected}: fetch or prepare it again"
                )

    def check_vocabulary(self, size: int, known: Container[str] = ()) -> None:
        """Refuse tokens beyond the vocabulary, naming the first one: they were made by another tokenizer.

        Reads every token, but for the shards whose names are `known`.
        """
        for path, shard in zip(self.paths, self._shards, strict=True):
            if path.name in known:
                continue
            for start in range(0, len(shard), 2**24):
                beyond = np.flatnonzero(shard[start : start + 2**24] >= size)
                if beyond.size:
                    place = start + int(beyond[0])
                    raise ValueError(
                        f"{path} has token {shard[place]} at {place}, beyond the vocabulary of {size}: "
                        "it is from another tokenizer"
                    )

    def fingerprint(self) -> str:
        """Tells these tokens from others by the length, beginning and end of every shard; cheap at any size."""
        digest = hashlib.sha256()
        for shard in self._shards:
            digest.update(len(shard).to_bytes(8, "little") + shard[:4096].tobytes() + shard[-4096:].tobytes())
        return digest.hexdigest()[:16]


class Batches:
    """Batches (tokens, targets), int64 of shape (sequences / processes, length); targets are the next tokens.

    sequences   of the whole batch, over all processes: process `rank` gets its part of the same batch
    seed        of the order of the sequences; None: as they lie in the shards
    position    the batch to begin with

    Iteration ends with the last whole batch: no token is seen twice. `load_state_dict` goes on at any batch.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = write_shard(folder / "train_000001.bin", np.arange(12, dtype=np.uint16))
    >>> batches = Batches(Tokens.of(folder, "train", vocabulary=12), sequences=2, length=2)
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
        """Batches of one pass over the data."""
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

    def state_dict(self) -> dict[str, Any]:
        """Where it is, and in what: the same on every process."""
        return {"position": self.position, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, on any number of processes; other data or another order is refused."""
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise ValueError(f"the batches have changed: {name} was {state.get(name)!r}, now it is {value!r}")
        self.position = self._check_position(state["position"])

    def _identity(self) -> dict[str, Any]:
        order = {"sequences": self.sequences, "length": self.length, "seed": self.seed}
        return {**order, "data": self.tokens.fingerprint()}

    def _check_position(self, position: int) -> int:
        if not 0 <= position <= len(self):
            raise ValueError(f"position must be a batch, 0 to {len(self)}, got {position}")
        return position
