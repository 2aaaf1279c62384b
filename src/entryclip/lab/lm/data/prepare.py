"""Text files to a folder of shards: the same input gives the same bytes, and a run that was stopped continues.

The folder's `manifest.json` records the options and the SHA-256 of every source, so that another request into the same
folder is refused.
"""

from collections.abc import Sequence
from pathlib import Path

from ...engine.files import alone
from .documents import Source, find_sources
from .encoding import ShardEncoder
from .manifest import (
    DataProgress,
    DataRequest,
    Manifest,
    SourceRecord,
    check_shards,
    hash_file,
    new_manifest,
    read_manifest,
)
from .tokenizer import parse_name


def prepare(
    inputs: Sequence[Path],
    out: Path,
    *,
    tokenizer: str = "bpe:4096",
    tokenizer_of: Path | None = None,
    shard_tokens: int = 100_000_000,
    val_every: int = 50,
    held_out: Sequence[Path] = (),
    gpt2_files: Path | None = None,
    progress: DataProgress = lambda what, done, total: None,
) -> Manifest:
    """Write the documents of `inputs` to `out` as shards and return the manifest. A finished folder is left as it is.

    inputs          files and folders of text; none: the source of Python's standard library
    tokenizer       gpt2, bpe:N (trained on the training documents, kept as `tokenizer.json`) or bytes
    tokenizer_of    a folder of shards whose tokenizer is used, in place of `tokenizer`: for a model trained on these
    shard_tokens    tokens per shard; the last shard of a split may have fewer
    val_every       every val_every-th document is for validation, beginning with the first
    held_out        files and folders of text for validation alone; val_every is not used then
    gpt2_files      the folder of `encoder.json` and `vocab.bpe`, where tiktoken cannot fetch them

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.jsonl").write_text('{"text": "validation"}\\n{"text": "training"}')
    >>> manifest = prepare([folder], folder / "out", tokenizer="bytes")
    >>> [(shard["name"], shard["tokens"]) for shard in manifest["shards"]]
    [('val_000000.bin', 11), ('train_000001.bin', 9)]
    """
    borrowed = None if tokenizer_of is None else _manifest_with_tokenizer(tokenizer_of)
    tokenizer = tokenizer if borrowed is None else borrowed["request"]["tokenizer"]
    parse_name(tokenizer)
    _check_sizes(shard_tokens, val_every)
    validation = find_sources(held_out) if held_out else []
    sources = [*validation, *_without(find_sources(inputs), validation)]
    check_is_folder(out)
    with alone(out / "manifest.json", "preparing"):
        request: DataRequest = {
            "tokenizer": tokenizer,
            "shard_tokens": shard_tokens,
            "sources": _source_records(sources, progress),
        }
        request |= {"held_out": len(validation)} if held_out else {"val_every": val_every}
        if borrowed is not None and (digest := borrowed["tokenizer_sha256"]) is not None:
            request["tokenizer_sha256"] = digest
        manifest = _open_manifest(out, request)
        if not manifest["complete"]:
            encoder = ShardEncoder(out, sources, manifest, progress)
            if tokenizer_of is not None:
                encoder.take_tokenizer(tokenizer_of)
            encoder.encode(encoder.load_tokenizer(gpt2_files))
    return manifest


def _manifest_with_tokenizer(folder: Path) -> Manifest:
    """Read the manifest of a folder of shards whose tokenizer is wanted; an error where there is none yet."""
    if not (folder / "manifest.json").is_file():
        raise FileNotFoundError(f"no shards in {folder}: --tokenizer-of is the --out of an `entryclip data` command")
    manifest = read_manifest(folder)
    if "vocabulary" not in manifest:
        raise ValueError(f"{folder} has no tokenizer yet: run the `entryclip data` command that makes it to its end")
    return manifest


def check_is_folder(out: Path) -> None:
    """Refuse a path for shards that is a file."""
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out} is a file: choose a folder with --out")


def _open_manifest(out: Path, request: DataRequest) -> Manifest:
    """Return the manifest of the folder, checked against the request, or a new one."""
    if not (out / "manifest.json").exists():
        return new_manifest(request)
    manifest = read_manifest(out)
    check_shards(out, manifest)
    before = manifest["request"]
    if "dataset" in before:
        raise ValueError(f"{out} holds other data, made by `entryclip data fineweb`: choose another --out")
    for name in (*before, *request):
        if name != "sources" and (old := before.get(name)) != (value := request.get(name)):
            raise ValueError(f"{out} was prepared with {name} {old}, now it is {value}: choose another --out")
    if before["sources"] != request["sources"]:
        changed = _first_changed(before["sources"], request["sources"])
        raise ValueError(f"{out} was prepared with other sources ({changed} has changed): choose another --out")
    return manifest


def _without(sources: Sequence[Source], held_out: Sequence[Source]) -> list[Source]:
    """Return the sources to train on: a file that is held out, though its folder was given, is not one of them."""
    aside = {source.path.resolve() for source in held_out}
    left = [source for source in sources if source.path.resolve() not in aside]
    if not left:
        raise ValueError("every file is held out: give texts to train on beside those of --held-out")
    return left


def _first_changed(old: Sequence[SourceRecord], new: Sequence[SourceRecord]) -> str:
    """Name the first source, in alphabetical order, that is new, gone or different."""
    was, now = ({source["name"]: source for source in each} for each in (old, new))
    changed = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
    return changed[0] if changed else "their order"


def _source_records(sources: Sequence[Source], progress: DataProgress) -> list[SourceRecord]:
    found: list[SourceRecord] = []
    sizes, done = [source.path.stat().st_size for source in sources], 0
    for source, size in zip(sources, sizes, strict=True):
        found.append({"name": source.name, "bytes": size, "sha256": hash_file(source.path)})
        progress("reading", done := done + size, sum(sizes))
    return found


def _check_sizes(shard_tokens: int, val_every: int) -> None:
    if not 1 <= shard_tokens < 2**31:  # the shard's header counts them in an int32
        raise ValueError(f"shard_tokens must be 1 to {2**31 - 1}, got {shard_tokens}")
    if val_every < 2:
        raise ValueError(f"val_every must be at least 2, so that something is left to train on, got {val_every}")
