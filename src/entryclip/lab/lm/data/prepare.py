"""Documents to shards of tokens: the same input gives the same bytes, and a run that was stopped goes on.

`manifest.json` is written after every shard. It holds what was asked for, so that another request into the same folder
is refused; every source and every shard with its SHA-256; and where in the documents each shard ends.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engine.files import alone, write_text
from .batches import write_shard
from .manifest import Progress, check_hash, check_shards, hash_file, new_manifest, read_manifest, save_manifest
from .manifest import load_manifest as load_manifest
from .text import Source, documents, find_sources
from .tokenizer import Tokenizer, bpe_tokenizer, bytes_tokenizer, gpt2_tokenizer, parse_name, train_bpe

_CHUNK = 2**22  # characters that are encoded at once, on all cores
_TRAINING_TEXT = 2**28  # characters that a tokenizer is trained on at most
_SPLITS = {"val": 0, "train": 1}  # and the number of its first shard


def prepare(
    inputs: Sequence[Path],
    out: Path,
    *,
    tokenizer: str = "bpe:4096",
    shard_tokens: int = 100_000_000,
    val_every: int = 50,
    gpt2_files: Path | None = None,
    progress: Progress = lambda what, done, total: None,
) -> dict[str, Any]:
    """Write the documents of `inputs` to `out` as shards; returns the manifest. A finished folder is left as it is.

    tokenizer       gpt2, bpe:N (trained on the training documents, kept as `tokenizer.json`) or bytes
    val_every       every so many documents one is for validation, the first among them
    gpt2_files      the folder of `encoder.json` and `vocab.bpe`, where tiktoken cannot fetch them

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.jsonl").write_text('{"text": "validation"}\\n{"text": "training"}')
    >>> manifest = prepare([folder], folder / "out", tokenizer="bytes")
    >>> [(shard["name"], shard["tokens"]) for shard in manifest["shards"]]
    [('val_000000.bin', 11), ('train_000001.bin', 9)]
    """
    parse_name(tokenizer)
    _check_sizes(shard_tokens, val_every)
    sources = find_sources(inputs)
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out} is a file: choose a folder with --out")
    with alone(out / "manifest.json", "preparing"):
        manifest = _begin(out, sources, tokenizer, shard_tokens, val_every, progress)
        job = _Job(out, sources, manifest, progress)
        if not manifest["complete"]:
            job.encode(job.load_tokenizer(gpt2_files))
    return manifest


class _Job:
    """One run: the documents of a split, their tokens, their shards."""

    def __init__(self, out: Path, sources: list[Source], manifest: dict[str, Any], progress: Progress) -> None:
        self.out, self.sources, self.manifest, self.progress = out, sources, manifest, progress
        self.total = sum(source["bytes"] for source in manifest["request"]["sources"])

    def load_tokenizer(self, gpt2_files: Path | None) -> Tokenizer:
        """The one asked for; a BPE tokenizer is trained the first time, and then kept."""
        kind, size = parse_name(self.manifest["request"]["tokenizer"])
        if kind == "bytes":
            return bytes_tokenizer()
        if kind == "gpt2":
            return gpt2_tokenizer(gpt2_files)
        path = self.out / "tokenizer.json"
        if self.manifest["tokenizer_sha256"] is None:
            text = train_bpe(size, self._training_text())
            write_text(path, text)
            self.manifest["tokenizer_sha256"] = hashlib.sha256(text.encode()).hexdigest()
            self._save()
        check_hash(path, self.manifest["tokenizer_sha256"])
        return bpe_tokenizer(path.read_text(encoding="utf-8"))

    def encode(self, tokenizer: Tokenizer) -> None:
        """All shards that are not there yet."""
        self.manifest |= {"vocabulary": tokenizer.vocabulary, "separator": tokenizer.separator}
        for split in _SPLITS:
            self._encode_split(tokenizer, split)
        self.manifest["complete"] = True
        self._save()

    def _encode_split(self, tokenizer: Tokenizer, split: str) -> None:
        done = [shard for shard in self.manifest["shards"] if shard["split"] == split]
        if done and done[-1]["next"] is None:
            return
        first, skip = done[-1]["next"] if done else (0, 0)
        size, room = (self.manifest["request"]["shard_tokens"],) * 2
        held: list[NDArray[np.uint16]] = []
        for index, found in enumerate(self._tokens(tokenizer, split, first), first):
            used = skip
            while used < len(found):
                held.append(found[used : used + room])
                used, room = used + len(held[-1]), room - len(held[-1])
                if not room:
                    self._add_shard(split, held, [index, used])
                    held, room = [], size
            skip = 0
        self._finish_split(split, held)

    def _finish_split(self, split: str, held: list[NDArray[np.uint16]]) -> None:
        shards = [shard for shard in self.manifest["shards"] if shard["split"] == split]
        if held:
            self._add_shard(split, held, None)
        elif shards:
            shards[-1]["next"] = None
            self._save()
        else:
            raise ValueError(f"no document is left for {split}: give more documents, or another --val-every")

    def _add_shard(self, split: str, held: list[NDArray[np.uint16]], after: list[int] | None) -> None:
        number = _SPLITS[split] + sum(shard["split"] == split for shard in self.manifest["shards"])
        name = f"{split}_{number:06d}.bin"
        tokens = np.concatenate(held)
        digest = write_shard(self.out / name, tokens)
        shard = {"name": name, "split": split, "tokens": len(tokens), "sha256": digest, "next": after}
        self.manifest["shards"].append(shard)
        self._save()

    def _tokens(self, tokenizer: Tokenizer, split: str, first: int) -> Iterator[NDArray[np.uint16]]:
        """The tokens of each document of a split, its separator before it, from document `first` on."""
        opening = np.array([tokenizer.separator], np.uint16)
        for chunk in _chunks(self._texts(split, f"{split} shards"), first):
            for tokens in tokenizer.encode(chunk):
                yield np.concatenate([opening, tokens])

    def _texts(self, split: str, what: str) -> Iterator[str]:
        every = self.manifest["request"]["val_every"]
        for index, (text, done) in enumerate(documents(self.sources)):
            if (index % every == 0) == (split == "val"):
                self.progress(what, done, self.total)
                yield text

    def _training_text(self) -> Iterator[str]:
        left = _TRAINING_TEXT
        for text in self._texts("train", "tokenizer"):
            yield text[:left]
            left -= len(text)
            if left <= 0:
                return

    def _save(self) -> None:
        save_manifest(self.out, self.manifest)


def _begin(
    out: Path, sources: list[Source], tokenizer: str, shard_tokens: int, val_every: int, progress: Progress
) -> dict[str, Any]:
    """The manifest of this request: the one in the folder, if there is one, or a new one."""
    request: dict[str, Any] = {"tokenizer": tokenizer, "shard_tokens": shard_tokens, "val_every": val_every}
    request["sources"] = _describe(sources, progress)
    if not (out / "manifest.json").exists():
        return new_manifest(request)
    manifest = read_manifest(out)
    check_shards(out, manifest)
    for name, value in request.items():
        if (old := manifest["request"].get(name)) != value:
            raise ValueError(f"{out} was prepared with {_difference(name, old, value)}")
    return manifest


def _difference(name: str, old: Any, new: Any) -> str:
    remedy = "choose another --out"
    if name != "sources":
        return f"{name} {old}, now it is {new}: {remedy}"
    was, now = ({source["name"]: source for source in each} for each in (old, new))
    changed = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
    return f"other sources ({changed[0] if changed else 'their order'} has changed): {remedy}"


def _describe(sources: list[Source], progress: Progress) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    sizes, done = [source.path.stat().st_size for source in sources], 0
    for source, size in zip(sources, sizes, strict=True):
        found.append({"name": source.name, "bytes": size, "sha256": hash_file(source.path)})
        progress("reading", done := done + size, sum(sizes))
    return found


def _chunks(texts: Iterator[str], first: int) -> Iterator[list[str]]:
    """Lists of texts, together about `_CHUNK` characters, without the `first` texts."""
    held: list[str] = []
    size = 0
    for index, text in enumerate(texts):
        if index < first:
            continue
        held.append(text)
        size += len(text)
        if size >= _CHUNK:
            yield held
            held, size = [], 0
    if held:
        yield held


def _check_sizes(shard_tokens: int, val_every: int) -> None:
    if not 1 <= shard_tokens < 2**31:  # the header counts them in an int32
        raise ValueError(f"shard_tokens must be 1 to {2**31 - 1}, got {shard_tokens}")
    if val_every < 2:
        raise ValueError(f"val_every must be at least 2, so that something is left to train on, got {val_every}")
