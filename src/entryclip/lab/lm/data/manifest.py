"""`manifest.json` of a folder of shards: what was asked for, and every shard with its tokens and SHA-256.

    format, request {tokenizer, sources, ...}, tokenizer_sha256, vocabulary, separator, complete
    shards [{name, split, tokens, sha256, ...}]

`read_manifest` reads it alone; `load_manifest` also reads every shard, at the price of reading all the data once.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...engine.files import checksum, write_json

FORMAT = 1
GPT2 = {"vocabulary": 50257, "separator": 50256}  # the tokens of the paper's shards
Progress = Callable[[str, int, int], None]  # what is being done, bytes done, bytes in all


def new_manifest(request: dict[str, Any]) -> dict[str, Any]:
    """Of a folder in which nothing is done yet."""
    return {"format": FORMAT, "request": request, "tokenizer_sha256": None, "shards": [], "complete": False}


def load_manifest(out: Path, *, thorough: bool = True) -> dict[str, Any]:
    """The manifest of a finished folder; where `thorough`, with every shard found whole by its SHA-256."""
    manifest = read_manifest(out)
    if thorough:
        check_shards(out, manifest)
    if not manifest["complete"]:
        raise ValueError(f"{out} is not finished: run the same `entryclip data` command again, it goes on")
    return manifest


def read_manifest(out: Path) -> dict[str, Any]:
    """What stands in the manifest; the shards are not looked at."""
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
    return manifest


def save_manifest(out: Path, manifest: dict[str, Any]) -> None:
    """Replace it in one step."""
    write_json(out / "manifest.json", manifest)


def check_shards(out: Path, manifest: dict[str, Any]) -> None:
    """Every shard of the manifest is there and has its SHA-256; the first that is not is named."""
    for shard in manifest["shards"]:
        check_hash(out / shard["name"], shard["sha256"])


def content_hash(out: Path) -> str:
    """Tells the shards of a folder from others, by what its manifest says of them."""
    shards = [[shard["name"], shard["sha256"]] for shard in read_manifest(out)["shards"]]
    return checksum(shards)[:16]


def recorded_lengths(out: Path, vocabulary: int) -> dict[str, int]:
    """The names and lengths of the shards that are known to keep within `vocabulary`; none without a manifest.

    They are those of a manifest whose own vocabulary is no larger: whoever wrote it saw every token.
    """
    if not (out / "manifest.json").is_file():
        return {}
    manifest = read_manifest(out)
    if not manifest["shards"] or manifest["vocabulary"] > vocabulary:
        return {}
    return {shard["name"]: shard["tokens"] for shard in manifest["shards"]}


def count_tokens(manifest: dict[str, Any], split: str) -> int:
    """The tokens of a split, `train` or `val`."""
    return sum(shard["tokens"] for shard in manifest["shards"] if shard["split"] == split)


def check_hash(path: Path, expected: str) -> None:
    """The file is there and has this SHA-256."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: {_REMEDY.format(path.parent)}")
    if hash_file(path) != expected:
        raise ValueError(f"{path} is damaged, its SHA-256 is another: {_REMEDY.format(path.parent)}")


_REMEDY = "remove it and fetch again (`entryclip data fineweb`), or remove the folder {} and prepare it again"


def hash_file(path: Path) -> str:
    """The SHA-256 of a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
