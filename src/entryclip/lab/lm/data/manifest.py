"""`manifest.json` of a folder of shards: how the folder was made, and every shard with its tokens and SHA-256.

`read_manifest` reads the file alone; `load_manifest` also reads every shard, at the price of reading all the data once.
"""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, cast

from ...engine.files import checksum, write_json
from ...engine.schema import (
    check,
    exactly,
    fields,
    flag,
    listed,
    one_of,
    optional,
    read_json,
    require,
    sha256,
    text,
    whole,
)

FORMAT = 1
Split = Literal["train", "val"]
DataProgress = Callable[[str, int, int], None]  # called with what is being done, bytes done, bytes in all


class Vocabulary(TypedDict):
    """The tokens of a tokenizer: how many there are, and the one that stands before each document."""

    vocabulary: int
    separator: int


_REMEDY = "choose another folder, or remove this one and make it again"
LARGEST_VOCABULARY = 2**16  # tokens are stored as uint16
SHARD_NAME = re.compile(r"(?:[^/\\\x00-\x1f]*_)?(train|val)_(\d{6})\.bin")  # a bare name: no folder in front
COMMIT = re.compile("[0-9a-f]{40}")
_SOURCE = fields({"name": text(), "bytes": whole(), "sha256": sha256()})
_SHARD = fields(
    {
        "name": text(SHARD_NAME, "a bare file name, as train_000001.bin"),
        "split": one_of("train", "val"),
        "tokens": whole(1, 2**31 - 1),
        "sha256": sha256(),
    },
    {"next": optional(listed(whole()))},
)
_REQUEST = fields(
    {"tokenizer": text(), "sources": listed(_SOURCE)},
    {
        "shard_tokens": whole(1, 2**31 - 1),
        "val_every": whole(2),
        "held_out": whole(1),
        "tokenizer_sha256": sha256(),
        "dataset": text(),
        "revision": optional(text(COMMIT, "a commit, 40 hexadecimal digits")),
    },
)
_FIELDS = fields(
    {
        "format": exactly(FORMAT),
        "request": _REQUEST,
        "shards": listed(_SHARD),
        "complete": flag,
        "tokenizer_sha256": optional(sha256()),
    },
)
_VOCABULARY = fields({"vocabulary": whole(1, LARGEST_VOCABULARY), "separator": whole()})
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
    shard_tokens: NotRequired[int]  # these three: of `prepare`
    val_every: NotRequired[int]  # either this one
    held_out: NotRequired[int]  # or this one: so many of the sources, the first ones, are for validation
    tokenizer_sha256: NotRequired[str]  # of a tokenizer that was trained for other data
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
    """Read the manifest of a folder, finished or not, without its shards; a `BadFile` names a field that is wrong."""
    path = out / "manifest.json"
    manifest = read_json(path, _REMEDY)
    check(manifest, _manifest_schema, path, _REMEDY)
    return cast(Manifest, manifest)


def _manifest_schema(value: Any, field: str) -> None:
    _FIELDS(value, field)
    if value["shards"] or value["complete"]:
        _VOCABULARY(value, field)
        require(value["separator"] < value["vocabulary"], "separator", "below the vocabulary", value["separator"])
    for index, shard in enumerate(value["shards"]):
        match = SHARD_NAME.fullmatch(shard["name"])
        good = match is not None and match[1] == shard["split"]
        require(good, f"shards[{index}].name", f"a file of the split {shard['split']}", shard["name"])
    names = [shard["name"] for shard in value["shards"]]
    require(len(set(names)) == len(names), "shards", "different files", names)


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


def name_tokenizer(folder: Path) -> str:
    """Return the name of the tokenizer of a folder of shards, with the SHA-256 of one that was trained.

    Shards without a manifest are in GPT-2's tokens.
    """
    if not (folder / "manifest.json").is_file():
        return "gpt2"
    manifest = read_manifest(folder)
    return " ".join(filter(None, (manifest["request"]["tokenizer"], manifest["tokenizer_sha256"])))


def recorded_lengths(out: Path, split: Split) -> dict[str, int]:
    """Return names and lengths of the shards of a split that the manifest lists; {} where there is no manifest."""
    if not (out / "manifest.json").exists():
        return {}
    return {shard["name"]: shard["tokens"] for shard in read_manifest(out)["shards"] if shard["split"] == split}


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
