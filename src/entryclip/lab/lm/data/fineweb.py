"""The paper's data: FineWeb's first 10B tokens, GPT-2's tokenizer, ready as shards on the Hugging Face hub.

A shard of 100M tokens is about 200 MB. Each is fetched into a hidden folder beside its place, checked as a whole, and
then gets its name and its line in the manifest: what has a name is whole, and a run that was stopped goes on after it.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...engine.files import FULL, alone, move
from .batches import Tokens
from .manifest import GPT2, Progress, check_hash, hash_file, new_manifest, read_manifest, save_manifest

DATASET = "kjj0/fineweb10B-gpt2"
ALL = 103  # training shards there are
_STAGING = ".fetching"


def fetch(
    out: Path, *, shards: int = 10, endpoint: str | None = None, progress: Progress = lambda what, done, total: None
) -> dict[str, Any]:
    """Bring the validation shard and the first training `shards` into `out`; returns the manifest.

    Shards that are there are checked and kept, so a folder can also be made larger. All are of one commit of the data
    set, the one that `main` is at when the folder is begun. `endpoint` is the server; by default HF_ENDPOINT's, or the
    hub.
    """
    if not 1 <= shards <= ALL:
        raise ValueError(f"shards must be 1 to {ALL}, got {shards}")
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out} is a file: choose a folder with --out")
    with alone(out / "manifest.json", "fetching into"):
        return _Fetch(out, _begin(out), endpoint, progress).run(names(shards))


def names(shards: int) -> list[str]:
    """The files of the data set.

    >>> names(2)
    ['fineweb_val_000000.bin', 'fineweb_train_000001.bin', 'fineweb_train_000002.bin']
    """
    return ["fineweb_val_000000.bin", *(f"fineweb_train_{i:06d}.bin" for i in range(1, shards + 1))]


class _Fetch:
    """One run."""

    def __init__(self, out: Path, manifest: dict[str, Any], endpoint: str | None, progress: Progress) -> None:
        self.out, self.manifest, self.endpoint, self.progress = out, manifest, endpoint, progress
        self.hub = _hub()

    def run(self, wanted: list[str]) -> dict[str, Any]:
        kept = self._kept()
        missing = [name for name in wanted if name not in kept]
        for number, name in enumerate(missing, 1):
            shard = self._get(name, f"{name} ({number} of {len(missing)})")
            self._save([*self.manifest["shards"], shard], complete=number == len(missing))
        if not self.manifest["complete"]:
            self._save(self.manifest["shards"], complete=True)
        shutil.rmtree(self.out / _STAGING, ignore_errors=True)
        return self.manifest

    def _kept(self) -> set[str]:
        """The shards that are there, each with its SHA-256. One that was removed is forgotten, and fetched again."""
        shards = [shard for shard in self.manifest["shards"] if (self.out / shard["name"]).exists()]
        for number, shard in enumerate(shards):
            self.progress("checking what is there", number, len(shards))
            check_hash(self.out / shard["name"], shard["sha256"])
        self.manifest["shards"] = shards
        return {shard["name"] for shard in shards}

    def _get(self, name: str, what: str) -> dict[str, Any]:
        """Fetch and check a shard, and give it its name; returns its line of the manifest."""
        shutil.rmtree(self.out / _STAGING, ignore_errors=True)  # what a killed run left behind
        with _explained(name, self.endpoint or self.hub.constants.ENDPOINT):
            remote = self._describe(name)
            path = self._download(name, remote, lambda done: self.progress(what, done, remote.size or 0))
        tokens, digest = Tokens([path]), hash_file(path)
        tokens.check_vocabulary(GPT2["vocabulary"])
        if re.fullmatch("[0-9a-f]{64}", remote.etag or "") and digest != remote.etag:  # the hub's tag of a large file
            raise ValueError(f"{name} was damaged on its way, its SHA-256 is not the hub's: run the same command again")
        move(path, self.out / name)
        split = "val" if "_val_" in name else "train"
        return {"name": name, "split": split, "tokens": len(tokens), "sha256": digest}

    def _describe(self, name: str) -> Any:
        """Size, tag and commit, without a retry: that there is no network should be known at once."""
        revision = self.manifest["request"]["revision"] or "main"
        url = self.hub.hf_hub_url(DATASET, name, repo_type="dataset", revision=revision, endpoint=self.endpoint)
        remote = self.hub.get_hf_file_metadata(url, endpoint=self.endpoint)
        self.manifest["request"]["revision"] = remote.commit_hash
        return remote

    def _download(self, name: str, remote: Any, report: Callable[[int], None]) -> Path:
        path = self.hub.hf_hub_download(
            *(DATASET, name),
            repo_type="dataset",
            revision=remote.commit_hash,
            local_dir=self.out / _STAGING,
            endpoint=self.endpoint,
            tqdm_class=_bar(self.hub.utils.tqdm, report),
        )
        return Path(path)

    def _save(self, shards: list[dict[str, Any]], *, complete: bool) -> None:
        self.manifest["shards"] = sorted(shards, key=lambda shard: (shard["split"] != "val", shard["name"]))
        self.manifest["complete"] = complete
        save_manifest(self.out, self.manifest)


def _begin(out: Path) -> dict[str, Any]:
    """The manifest in the folder, if it is of this data set, or a new one."""
    if not (out / "manifest.json").exists():
        request: dict[str, Any] = {"dataset": DATASET, "revision": None, "tokenizer": "gpt2", "sources": []}
        return new_manifest(request) | GPT2
    manifest = read_manifest(out)
    if manifest["request"].get("dataset") != DATASET:
        raise ValueError(f"{out} holds other data, made by `entryclip data prepare`: choose another --out")
    return manifest


@contextmanager
def _explained(name: str, endpoint: str) -> Iterator[None]:
    """What goes wrong on the network, in one line."""
    try:
        yield
    except Exception as error:  # the hub's client lets those of its HTTP library through
        if isinstance(error, OSError) and error.errno in FULL:
            raise OSError(error.errno, f"no space for {name}: make room and run the same command again") from error
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        remedy = "check the network, or set HF_ENDPOINT to a mirror; the same command goes on"
        raise OSError(f"{name} of {DATASET} cannot be fetched from {endpoint} ({reason}): {remedy}") from error


def _bar(base: Any, report: Callable[[int], None]) -> Any:
    """A progress bar of the kind the hub's client takes, that draws nothing and reports the bytes that are there."""

    class Bar(base):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options | {"disable": True})
            self.n = options.get("initial", 0)

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            report(int(self.n))

    return Bar


def _hub() -> Any:  # the module
    try:
        import huggingface_hub.constants
        import huggingface_hub.utils
    except ImportError as error:
        raise ImportError("fetching from the hub needs more packages: pip install 'entryclip[lm]'") from error
    return huggingface_hub
