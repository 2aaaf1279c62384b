"""Documents encoded to shards, one after the other, with the manifest saved after each: a stopped run continues.

The manifest records where in the documents each shard ends, so the next run starts encoding there.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...engine.files import write_text
from .documents import Source, documents
from .manifest import DataProgress, Manifest, ShardRecord, Split, check_hash, save_manifest
from .shards import write_shard
from .tokenizer import Tokenizer, bpe_tokenizer, bytes_tokenizer, gpt2_tokenizer, parse_name, train_bpe

TOKENIZER = "tokenizer.json"
Pieces = list[NDArray[np.uint16]]
_CHUNK = 2**22  # characters that are encoded at once, on all cores
_TRAINING_TEXT = 2**28  # characters that a tokenizer is trained on at most
_FIRST_NUMBER: dict[Split, int] = {"val": 0, "train": 1}  # splits in their order, and the number of their first shard


class ShardEncoder:
    """Writes the shards of a manifest's request that are still missing.

    out         the folder of the shards
    sources     the files of the documents, in order
    manifest    of the folder; updated in place and saved after every shard
    """

    def __init__(self, out: Path, sources: Sequence[Source], manifest: Manifest, progress: DataProgress) -> None:
        self.out, self.sources, self.manifest, self.progress = out, sources, manifest, progress
        self._total = sum(source["bytes"] for source in manifest["request"]["sources"])

    def load_tokenizer(self, gpt2_files: Path | None) -> Tokenizer:
        """Return the tokenizer of the request; a BPE tokenizer is trained by the first run and kept in the folder."""
        kind, size = parse_name(self.manifest["request"]["tokenizer"])
        if kind == "bytes":
            return bytes_tokenizer()
        if kind == "gpt2":
            return gpt2_tokenizer(gpt2_files)
        path, digest = self.out / TOKENIZER, self.manifest["tokenizer_sha256"]
        if digest is None:
            text = train_bpe(size, self._training_text())
            write_text(path, text)
            digest = self.manifest["tokenizer_sha256"] = hashlib.sha256(text.encode()).hexdigest()
            self._save()
        check_hash(path, digest)
        return bpe_tokenizer(path.read_text(encoding="utf-8"))

    def take_tokenizer(self, folder: Path) -> None:
        """Use the tokenizer that was trained for the shards of another folder; one that is not trained has no file."""
        digest = self.manifest["request"].get("tokenizer_sha256")
        if digest is None or self.manifest["tokenizer_sha256"] is not None:
            return
        check_hash(folder / TOKENIZER, digest)
        write_text(self.out / TOKENIZER, (folder / TOKENIZER).read_text(encoding="utf-8"))
        self.manifest["tokenizer_sha256"] = digest
        self._save()

    def encode(self, tokenizer: Tokenizer) -> None:
        """Write all missing shards of both splits and mark the folder as complete."""
        self.manifest["vocabulary"], self.manifest["separator"] = tokenizer.vocabulary, tokenizer.separator
        for split in _FIRST_NUMBER:
            self._encode_split(tokenizer, split)
        self.manifest["complete"] = True
        self._save()

    def _encode_split(self, tokenizer: Tokenizer, split: Split) -> None:
        done = self._shards(split)
        after = done[-1]["next"] if done else [0, 0]
        if after is None:
            return
        first, skip = after
        size = room = self.manifest["request"]["shard_tokens"]
        held: Pieces = []
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

    def _finish_split(self, split: Split, held: Pieces) -> None:
        """Write the last, shorter shard, or mark the last one written as the last."""
        if held:
            self._add_shard(split, held, None)
        elif shards := self._shards(split):
            shards[-1]["next"] = None
            self._save()
        else:
            raise ValueError(f"no document is left for {split}: give more documents, or another --val-every")

    def _add_shard(self, split: Split, held: Pieces, after: list[int] | None) -> None:
        name = f"{split}_{_FIRST_NUMBER[split] + len(self._shards(split)):06d}.bin"
        tokens = np.concatenate(held)
        digest = write_shard(self.out / name, tokens)
        self.manifest["shards"].append(
            {"name": name, "split": split, "tokens": len(tokens), "sha256": digest, "next": after}
        )
        self._save()

    def _shards(self, split: Split) -> list[ShardRecord]:
        return [shard for shard in self.manifest["shards"] if shard["split"] == split]

    def _tokens(self, tokenizer: Tokenizer, split: Split, first: int) -> Iterator[NDArray[np.uint16]]:
        """Encode the documents of a split from number `first` on, each with its separator in front."""
        opening = np.array([tokenizer.separator], np.uint16)
        for chunk in _chunks(self._texts(split, f"{split} shards"), first):
            for tokens in tokenizer.encode(chunk):
                yield np.concatenate([opening, tokens])

    def _texts(self, split: Split, what: str) -> Iterator[str]:
        """Yield the documents of a split: of its own files where some are held out, else every n-th or the others."""
        request = self.manifest["request"]
        first, every = request.get("held_out"), request.get("val_every", 1)
        mine = self.sources if first is None else self.sources[:first] if split == "val" else self.sources[first:]
        for index, (text, done) in enumerate(documents(mine)):
            if first is not None or (index % every == 0) == (split == "val"):
                self.progress(what, done, self._total)
                yield text

    def _training_text(self) -> Iterator[str]:
        """Yield the training documents, cut off after `_TRAINING_TEXT` characters in all."""
        left = _TRAINING_TEXT
        for text in self._texts("train", "tokenizer"):
            yield text[:left]
            left -= len(text)
            if left <= 0:
                return

    def _save(self) -> None:
        save_manifest(self.out, self.manifest)


def _chunks(texts: Iterator[str], first: int) -> Iterator[list[str]]:
    """Group the texts from number `first` on into lists of about `_CHUNK` characters."""
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
