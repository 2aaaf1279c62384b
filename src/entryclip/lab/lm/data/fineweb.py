"""The paper's data: FineWeb's first 10B tokens, GPT-2's tokenizer, ready as shards on the Hugging Face hub.

A shard of 100M tokens is about 200 MB. Each is downloaded into a hidden folder beside its place, checked as a whole,
and only then moved to its name and listed in the manifest. A run that was stopped continues after the last such shard.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...engine.files import FULL, alone, move
from ...engine.schema import HASH
from ..extras import import_extra
from .manifest import (
    COMMIT,
    GPT2,
    DataProgress,
    Manifest,
    ShardRecord,
    Split,
    check_hash,
    hash_file,
    new_manifest,
    read_manifest,
    save_manifest,
)
from .prepare import check_is_folder
from .shards import Tokens

DATASET = "kjj0/fineweb10B-gpt2"
TRAINING_SHARDS = 103  # in the data set
_STAGING = ".fetching"


def fetch(
    out: Path,
    *,
    shards: int = 10,
    revision: str | None = None,
    endpoint: str | None = None,
    progress: DataProgress = lambda what, done, total: None,
) -> Manifest:
    """Download the validation shard and the first training `shards` into `out`; return the manifest.

    Shards that are there are checked and kept, so a folder can also be made larger. All are of one commit of the data
    set, and each is compared with the SHA-256 that the server has for it.

    revision    the commit of the data set (default: the one that `main` points to when the folder is begun)
    endpoint    address of the server (default: HF_ENDPOINT's, or the hub)
    """
    if not 1 <= shards <= TRAINING_SHARDS:
        raise ValueError(f"shards must be 1 to {TRAINING_SHARDS}, got {shards}")
    if revision is not None and not COMMIT.fullmatch(revision):
        raise ValueError(f"revision must be a commit, 40 hexadecimal digits, got {revision!r}")
    check_is_folder(out)
    with alone(out / "manifest.json", "fetching into"):
        return _Download(out, _open_manifest(out, revision), endpoint, progress).run(shard_names(shards))


def shard_names(shards: int) -> list[str]:
    """List the files of the data set: the validation shard and the first training shards.

    >>> shard_names(2)
    ['fineweb_val_000000.bin', 'fineweb_train_000001.bin', 'fineweb_train_000002.bin']
    """
    return ["fineweb_val_000000.bin", *(f"fineweb_train_{i:06d}.bin" for i in range(1, shards + 1))]


class _Download:
    """The download of the missing shards into one folder, with its manifest saved after each."""

    def __init__(self, out: Path, manifest: Manifest, endpoint: str | None, progress: DataProgress) -> None:
        self.out, self.manifest, self.endpoint, self.progress = out, manifest, endpoint, progress
        self.hub = _import_hub()

    def run(self, wanted: Sequence[str]) -> Manifest:
        """Fetch the wanted shards that are not in the folder yet."""
        kept = self._check_kept()
        missing = [name for name in wanted if name not in kept]
        for number, name in enumerate(missing, 1):
            shard = self._fetch_shard(name, f"{name} ({number} of {len(missing)})")
            self._save([*self.manifest["shards"], shard], complete=number == len(missing))
        if not self.manifest["complete"]:
            self._save(self.manifest["shards"], complete=True)
        shutil.rmtree(self.out / _STAGING, ignore_errors=True)
        return self.manifest

    def _check_kept(self) -> set[str]:
        """Compare the shards in the folder with their SHA-256; unlist those that were removed, so they come again."""
        shards = [shard for shard in self.manifest["shards"] if (self.out / shard["name"]).exists()]
        for number, shard in enumerate(shards):
            self.progress("checking shards", number, len(shards))
            check_hash(self.out / shard["name"], shard["sha256"])
        self.manifest["shards"] = shards
        return {shard["name"] for shard in shards}

    def _fetch_shard(self, name: str, what: str) -> ShardRecord:
        """Download a shard, check it, move it to its name and return its entry in the manifest."""
        shutil.rmtree(self.out / _STAGING, ignore_errors=True)  # a killed run may have left a part there
        with _network_errors_explained(name, self.endpoint or self.hub.constants.ENDPOINT):
            remote = self._remote_file(name)
        if not HASH.fullmatch(remote.etag or ""):
            server = self.endpoint or self.hub.constants.ENDPOINT
            raise ValueError(
                f"{server} gives no SHA-256 for {name}, its ETag is {remote.etag!r}: use another HF_ENDPOINT"
            )
        with _network_errors_explained(name, self.endpoint or self.hub.constants.ENDPOINT):
            path = self._download(name, remote, lambda done: self.progress(what, done, remote.size or 0))
        tokens, digest = Tokens([path]), hash_file(path)
        tokens.check_vocabulary(GPT2["vocabulary"])
        if digest != remote.etag:  # the hub's ETag of a large file
            raise ValueError(f"{name} was damaged on its way, its SHA-256 is not the hub's: run the same command again")
        move(path, self.out / name)
        split: Split = "val" if "_val_" in name else "train"
        return {"name": name, "split": split, "tokens": len(tokens), "sha256": digest}

    def _remote_file(self, name: str) -> Any:
        """Ask for size, ETag and commit of a file, without a retry: a missing network should be reported at once."""
        revision = self.manifest["request"]["revision"] or "main"
        url = self.hub.hf_hub_url(DATASET, name, repo_type="dataset", revision=revision, endpoint=self.endpoint)
        remote = self.hub.get_hf_file_metadata(url, endpoint=self.endpoint)
        if not COMMIT.fullmatch(remote.commit_hash or ""):
            raise ValueError(f"no commit of the data set, but {remote.commit_hash!r}")
        if revision not in ("main", remote.commit_hash):
            raise ValueError(f"commit {remote.commit_hash} in place of {revision}")
        self.manifest["request"]["revision"] = remote.commit_hash
        return remote

    def _download(self, name: str, remote: Any, report: Callable[[int], None]) -> Path:
        path = self.hub.hf_hub_download(
            *(DATASET, name),
            repo_type="dataset",
            revision=remote.commit_hash,
            local_dir=self.out / _STAGING,
            endpoint=self.endpoint,
            tqdm_class=_reporting_bar(self.hub.utils.tqdm, report),
        )
        return Path(path)

    def _save(self, shards: list[ShardRecord], *, complete: bool) -> None:
        self.manifest["shards"] = sorted(shards, key=lambda shard: (shard["split"] != "val", shard["name"]))
        self.manifest["complete"] = complete
        save_manifest(self.out, self.manifest)


def _open_manifest(out: Path, revision: str | None) -> Manifest:
    """Return the manifest in the folder if it is of this data set and revision, or a new one."""
    if not (out / "manifest.json").exists():
        new = new_manifest({"dataset": DATASET, "revision": revision, "tokenizer": "gpt2", "sources": []})
        return {**new, **GPT2}
    manifest = read_manifest(out)
    if manifest["request"].get("dataset") != DATASET:
        raise ValueError(f"{out} holds other data, made by `entryclip data prepare`: choose another --out")
    begun = manifest["request"]["revision"]
    if revision not in (None, begun):
        raise ValueError(f"{out} was begun with revision {begun}, now it is {revision}: choose another --out")
    return manifest


@contextmanager
def _network_errors_explained(name: str, endpoint: str) -> Iterator[None]:
    """Turn any error of a download into an OSError of one line, with the remedy."""
    try:
        yield
    except Exception as error:  # the hub's client lets the exceptions of its HTTP library through
        if isinstance(error, OSError) and error.errno in FULL:
            raise OSError(error.errno, f"no space for {name}: make room and run the same command again") from error
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        remedy = "check the network, or set HF_ENDPOINT to a mirror; the same command continues"
        raise OSError(f"{name} of {DATASET} cannot be fetched from {endpoint} ({reason}): {remedy}") from error


def _reporting_bar(base: Any, report: Callable[[int], None]) -> Any:
    """Make a class for the hub client's `tqdm_class` that draws nothing and reports the number of bytes so far."""

    class ReportingBar(base):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options | {"disable": True})
            self.n = options.get("initial", 0)

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            report(int(self.n))

    return ReportingBar


def _import_hub() -> Any:
    for module in ("huggingface_hub.constants", "huggingface_hub.utils"):
        import_extra(module, "fetching from the hub")
    return import_extra("huggingface_hub", "fetching from the hub")
