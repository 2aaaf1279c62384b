"""Text that is on every machine: the Python standard library's own source, as shards in the user's cache folder."""

import os
import platform
from pathlib import Path

from ..files import locked
from .prepare import prepare


def data_folder(given: str, model: str) -> Path:
    """The folder that was given; where it is empty, the default of a model: bytes for the tiny one, else bpe:4096."""
    return Path(given) if given else default_data("bytes" if model == "tiny" else "bpe:4096")


def default_data(tokenizer: str = "bytes") -> Path:
    """The folder of its shards; made at the first call, in seconds with `bytes`, a minute with a trained tokenizer."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = f"python-{platform.python_version()}-{tokenizer.replace(':', '-')}"
    folder = cache / "entryclip" / name
    with locked(folder, wait=True):  # two processes may ask for it at once
        prepare([], folder, tokenizer=tokenizer)
    return folder
