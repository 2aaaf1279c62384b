"""Shards of tokens: one file format, and all shards of a folder read as one long vector.

A shard is 256 little-endian int32 (20240520, 1, number of tokens, zeros), then the tokens as uint16: the format of the
paper's data. Shards of a folder are called `train_000001.bin`, `val_000000.bin`, or with a word in front, as
`fineweb_val_000000.bin`.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...engine.files import write_bytes
from .manifest import LARGEST_VOCABULARY, SHARD_NAME, Split, recorded_lengths

MAGIC, VERSION, HEADER = 20240520, 1, 256


def write_shard(path: Path, tokens: NDArray[np.uint16]) -> str:
    """Write tokens, shape (n,), as a shard, all of it or nothing; return its SHA-256."""
    if tokens.dtype != np.uint16 or tokens.ndim != 1 or not tokens.size:
        raise ValueError(f"a shard takes a vector of uint16 tokens, got {tokens.dtype} of shape {tokens.shape}")
    header = np.zeros(HEADER, "<i4")
    header[:3] = MAGIC, VERSION, len(tokens)
    data = header.tobytes() + tokens.astype("<u2", copy=False).tobytes()
    write_bytes(path, data)
    return hashlib.sha256(data).hexdigest()


def read_shard(path: Path) -> NDArray[np.uint16]:
    """Open the tokens of a shard, shape (n,), as a memory map. A file that is not a whole shard is refused."""
    size = path.stat().st_size
    if size < 4 * HEADER:
        raise ValueError(f"{path} is not a shard: it has {size} bytes, a header alone {4 * HEADER}")
    magic, version, count = (int(x) for x in np.fromfile(path, "<i4", count=3))
    if magic != MAGIC:
        found = f"it starts with {magic}, not {MAGIC}"
        raise ValueError(f"{path} is not a shard of tokens: {found}; prepare the data again")
    if version != VERSION:
        found = f"a shard of version {version}, this reads version {VERSION}"
        raise ValueError(f"{path} is {found}: prepare the data again")
    if count < 1 or size != 4 * HEADER + 2 * count:
        found = f"{count} tokens make {4 * HEADER + 2 * count} bytes, it has {size}"
        raise ValueError(f"{path} is damaged: {found}; fetch or prepare it again")
    return np.memmap(path, "<u2", mode="r", offset=4 * HEADER, shape=(count,))


def find_shards(folder: Path, split: Split) -> list[Path]:
    """List the shards of a split in the order of their numbers; a gap in the numbers is refused."""
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}: make it by `entryclip data prepare --out {folder}`")
    found: dict[int, Path] = {}
    for path in folder.iterdir():
        if (match := SHARD_NAME.fullmatch(path.name)) and match[1] == split:
            if int(match[2]) in found:
                raise ValueError(f"{folder} mixes data sets: both {found[int(match[2])].name} and {path.name}")
            found[int(match[2])] = path
    if not found:
        raise FileNotFoundError(f"no {split} shards in {folder}: make them by `entryclip data prepare --out {folder}`")
    first, last = min(found), max(found)
    if missing := set(range(first, last + 1)) - found.keys():
        raise FileNotFoundError(f"{folder} lacks the {split} shard number {min(missing)}: fetch or prepare it again")
    return [found[i] for i in range(first, last + 1)]


class Tokens:
    """All shards of a split as one long vector of tokens, read from the memory maps where it is needed.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = write_shard(folder / "train_000001.bin", np.arange(5, dtype=np.uint16))
    >>> _ = write_shard(folder / "train_000002.bin", np.arange(5, 8, dtype=np.uint16))
    >>> tokens = Tokens.open(folder, "train", vocabulary=8)
    >>> len(tokens)
    8
    >>> tokens.read(3, 7).tolist()
    [3, 4, 5, 6]
    """

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self._shards = [read_shard(path) for path in paths]
        self._starts = np.cumsum([0, *(len(shard) for shard in self._shards)])

    @classmethod
    def open(cls, folder: Path, split: Split, *, vocabulary: int, thorough: bool = True) -> "Tokens":
        """Open the shards of a split as the manifest lists them, and make sure that all tokens are below `vocabulary`.

        A shard that the manifest does not list is refused, since another tokenizer may have made it. Every token is
        read, at a fraction of the cost of a SHA-256: a manifest may claim what it likes. One process of several is
        enough for that; the others pass `thorough=False`.
        """
        tokens = cls(find_shards(folder, split))
        tokens._check_listed(recorded_lengths(folder, split))
        if thorough:
            tokens.check_vocabulary(vocabulary)
        return tokens

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, start: int, stop: int) -> NDArray[np.uint16]:
        """Copy the tokens from `start` to `stop`, across the borders of shards."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"tokens {start} to {stop} are not within the {len(self)} there are")
        parts = []
        for shard, first in zip(self._shards, self._starts, strict=False):
            if first < stop and start < first + len(shard):
                parts.append(shard[max(start - first, 0) : stop - first])
        return np.concatenate(parts) if parts else np.empty(0, np.uint16)

    def _check_listed(self, recorded: Mapping[str, int]) -> None:
        """Compare the shards with the names and lengths that the manifest recorded."""
        folder, there = self.paths[0].parent, {path.name for path in self.paths}
        if missing := sorted(recorded.keys() - there):
            raise FileNotFoundError(f"{folder / missing[0]} is missing, the manifest lists it: prepare the data again")
        if recorded and (foreign := sorted(there - recorded.keys())):
            reason = "is not in the manifest, and may be of another tokenizer"
            raise ValueError(f"{folder / foreign[0]} {reason}: move it away")
        for path, shard in zip(self.paths, self._shards, strict=True):
            if (expected := recorded.get(path.name, len(shard))) != len(shard):
                found = f"has {len(shard)} tokens, by the manifest it had {expected}"
                raise ValueError(f"{path} {found}: fetch or prepare it again")

    def check_vocabulary(self, size: int) -> None:
        """Read every token and refuse one beyond the vocabulary: another tokenizer made it."""
        if size < LARGEST_VOCABULARY:
            for path, shard in zip(self.paths, self._shards, strict=True):
                _check_below(path, shard, size)

    def fingerprint(self) -> str:
        """Hash the length, beginning and end of every shard, to tell these tokens from others; cheap at any size."""
        digest = hashlib.sha256()
        for shard in self._shards:
            digest.update(len(shard).to_bytes(8, "little") + shard[:4096].tobytes() + shard[-4096:].tobytes())
        return digest.hexdigest()[:16]


def _check_below(path: Path, shard: NDArray[np.uint16], size: int) -> None:
    for start in range(0, len(shard), 2**24):
        beyond = np.flatnonzero(shard[start : start + 2**24] >= size)
        if beyond.size:
            place = start + int(beyond[0])
            found = f"has token {shard[place]} at {place}, beyond the vocabulary of {size}"
            raise ValueError(f"{path} {found}: it is from another tokenizer")
