"""Data for runs without `--data`: the source of Python's standard library, as shards in the user's cache folder."""

import functools
import platform
from pathlib import Path

from ....optim.kernels.private_folder import user_cache
from ...engine.files import checksum, locked
from .documents import find_sources
from .manifest import hash_file
from .prepare import prepare


def data_folder(given: str, model: str) -> Path:
    """Return the folder that was given or, where that is empty, the default data of a model.

    A process looks at the sources of the default data once: a study asks for each of its many runs.
    """
    return Path(given) if given else _default_once(default_tokenizer(model), user_cache())


@functools.cache
def _default_once(tokenizer: str, cache: Path) -> Path:
    return default_data(tokenizer)


def default_tokenizer(model: str) -> str:
    """Name the tokenizer of the default data: bytes for the tiny model, bpe:4096 for the small one.

    The paper's model has no default data: it needs the paper's.
    """
    if model == "paper":
        raise ValueError("the paper's model needs data: `entryclip data fineweb --out data/fineweb`, then --data")
    return "bytes" if model == "tiny" else "bpe:4096"


def default_data(tokenizer: str = "bytes") -> Path:
    """Return the folder of the default shards; the first call makes it.

    That takes seconds with `bytes`, a minute with a tokenizer that is trained. Every build of Python has a folder of
    its own, since their sources differ.
    """
    source = checksum([[each.name, hash_file(each.path)] for each in find_sources([])])[:8]
    folder = user_cache() / "entryclip" / f"python-{platform.python_version()}-{source}-{tokenizer.replace(':', '-')}"
    with locked(folder, wait=True):  # two processes may need it at once
        prepare([], folder, tokenizer=tokenizer)
    return folder
