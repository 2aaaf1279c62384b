"""Text that is on every machine: the Python standard library's own source, as shards in the user's cache folder."""

import os
import platform
from pathlib import Path

from ...engine.files import checksum, locked
from .manifest import hash_file
from .prepare import prepare
from .text import find_sources


def data_folder(given: str, model: str) -> Path:
    """The folder that was given; where it is empty, the default of a model."""
    return Path(given) if given else default_data(default_tokenizer(model))


def default_tokenizer(model: str) -> str:
    """Bytes for the tiny model, bpe:4096 for the small one; the paper's needs the paper's data."""
    if model == "paper":
        raise ValueError("the paper's model needs data: `entryclip data fineweb --out data/fineweb`, then --data")
    return "bytes" if model == "tiny" else "bpe:4096"


def default_data(tokenizer: str = "bytes") -> Path:
    """The folder of its shards; made at the first call, in seconds with `bytes`, a minute with a trained tokenizer."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    source = checksum([[each.name, hash_file(each.path)] for each in find_sources([])])[:8]  # builds differ
    folder = cache / "entryclip" / f"python-{platform.python_version()}-{source}-{tokenizer.replace(':', '-')}"
    with locked(folder, wait=True):  # two processes may ask for it at once
        prepare([], folder, tokenizer=tokenizer)
    return folder
