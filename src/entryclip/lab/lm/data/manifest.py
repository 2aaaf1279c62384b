"""`manifest.json` of a folder of shards: how the folder was made, and every shard with its tokens and SHA-256.

`read_manifest` reads the file alone; `load_manifest` also reads every shard, at the price of reading all the data once.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NotRequired, TypedDict, cast

from ...engine.files import checksum, write_json

FORMAT = 1
Split = Literal["train", "val"]
DataProgress = Callable[[str, int, int], None]  # called with what is being done, bytes done, bytes in all


class Vocabulary(TypedDict):
    """The tokens of a tokenizer: how many there are, and the one that stands before each document."""

    vocabulary: int
    separator: int


GPT2: Vocabulary = {"vocabulary": 50257, "separator": 50256}  # of the paper's shards


class ShardRecord(TypedDict):
    """One shard: file name, split, number of tokens, SHA-256 of the file."""

    name: str
    split: Split
    tokens: int
    sha256: str
    next: NotRequired[
        list[int] | None
    ]  # of `prepare`: the [document, token] that the next shard starts with; None: last


class SourceRecord(TypedDict):
    """One file of text that shards were made from."""

    name: str
    bytes: int
    sha256: str


class DataRequest(TypedDict):
    """The options that a folder was made with. Resuming with other options is refused."""

    tokenizer: str
    shard_tokens: NotRequired[int]  # these two: of `prepare`
    val_every: NotRequired[int]
    dataset: NotRequired[str]  # these two: of `fineweb`
    revision: NotRequired[str | None]
    sources: list[SourceRecord]


class Manifest(TypedDict):
    """The content of `manifest.json`. The vocabulary is there as soon as the tokenizer is."""

    format: int
    request: DataRequest
    tokenizer_sha256: str | None
    shards: list[ShardRecord]
    complete: bool
    vocabulary: NotRequired[int]
    separator: NotRequired[int]


def new_manifest(request: DataRequest) -> Manifest:
    """Make the manifest of a folder without shards."""
    return {"format": FORMAT, "request": request, "tokenizer_sha256": None, "shards": [], "complete": False}


def load_manifest(out: Path, *, thorough: bool = True) -> Manifest:
    """Read the manifest of a finished folder; where `thorough`, compare every shard with its SHA-256."""
    manifest = read_manifest(out)
    if thorough:
        check_shards(out, manifest)
    if not manifest["complete"]:
        raise ValueError(f"{out} is not finished: run the same `entryclip data` command again to continue")
    return manifest


def read_manifest(out: Path) -> Manifest:
    """Read the manifest of a folder, finished or not, without looking at its shards."""
    path = out / "manifest.json"
    try:
        manifest = dict(json.loads(path.read_text(encoding="utf-8")))
        _, _ = manifest["request"]["sources"], manifest["complete"]
        if [each for each in manifest["shards"] if {"name", "split", "tokens", "sha256"} - each.keys()]:
            raise ValueError("a shard is not described")
        if manifest["shards"] and not isinstance(manifest["vocabulary"], int):
            raise ValueError(f"vocabulary {manifest['vocabulary']}")
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']}")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error}): choose another --out, or remove the folder") from error
    return cast(Manifest, manifest)


def save_manifest(out: Path, manifest: Manifest) -> None:
    """Replace the manifest of a folder in one step."""
    write_json(out / "manifest.json", manifest)


def check_shards(out: Path, manifest: Manifest) -> None:
    """Refuse a folder in which a shard of the manifest is missing or has another SHA-256; the error names it."""
    for shard in manifest["shards"]:
        check_hash(out / shard["name"], shard["sha256"])


def content_hash(out: Path) -> str:
    """Compute a hash of the names and SHA-256 of all shards, which tells the data of a folder from other data."""
    shards = [[shard["name"], shard["sha256"]] for shard in read_manifest(out)["shards"]]
    return checksum(shards)[:16]


def recorded_lengths(out: Path, vocabulary: int) -> dict[str, int]:
    """Return shard names and lengths if the manifest guarantees that all tokens are below `vocabulary`, else {}.

    It does where its own vocabulary is no larger: every token was checked when the shards were written.
    """
    if not (out / "manifest.json").is_file():
        return {}
    manifest = read_manifest(out)
    if not manifest["shards"] or manifest["vocabulary"] > vocabulary:
        return {}
    return {shard["name"]: shard["tokens"] for shard in manifest["shards"]}


def count_tokens(manifest: Manifest, split: Split) -> int:
    """Count the tokens of a split."""
    return sum(shard["tokens"] for shard in manifest["shards"] if shard["split"] == split)


def check_hash(path: Path, expected: str) -> None:
    """Refuse a file that is missing or has another SHA-256."""
    remedy = (
        f"remove it and fetch again (`entryclip data fineweb`), or remove the folder {path.parent} and prepare it again"
    )
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: {remedy}")
    if hash_file(path) != expected:
        raise ValueError(f"{path} is damaged, its SHA-256 is another: {remedy}")


def hash_file(path: Path) -> str:
    """Compute the SHA-256 of a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
