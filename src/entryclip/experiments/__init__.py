"""Every experiment of the paper, one module each: `Config -> run(config) yields rows -> plot(rows)` and `claims(rows)`."""

import importlib
from types import ModuleType

NAMES = ("operators",)  # in the order in which `reproduce all` runs them


def find(name: str) -> ModuleType:
    """The module of an experiment."""
    if name not in NAMES:
        raise ValueError(f"unknown experiment {name!r}: choose from {', '.join(NAMES)}")
    return importlib.import_module(f".{name.replace('-', '_')}", __name__)
