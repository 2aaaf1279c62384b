"""Every experiment of the paper, one module each: `Config -> run(config) -> rows -> plot(rows), claims(rows)`.

One that takes long is done in units: `units(config)` describes independent pieces, `run_unit(config, unit)` gives the
rows of one; where some pieces depend on the rows of others, `next_units(config, rows)` gives the pieces that the rows
so far call for. `tables(rows)`, where there is one, gives the report's tables: a caption and rows for each.
"""

import importlib
from types import ModuleType
from typing import Any

# in the order in which `reproduce all` runs them
NAMES = (
    "operators",
    "learning-rate",
    "bayes",
    "looseness",
    "convergence",
    "noise-models",
    "spectral-mse",
    "spectral-control",
    "tails",
    "probe-trust",
    "noise-structure",
    "regression",
    "pretraining",
    "spike",
)


def check_name(name: str) -> str:
    """`name`, if there is such an experiment."""
    if name not in NAMES:
        raise ValueError(f"unknown experiment {name!r}: choose from {', '.join(NAMES)}, or all")
    return name


def find(name: str) -> ModuleType:
    """The module of an experiment."""
    return importlib.import_module(f".{check_name(name).replace('-', '_')}.study", __name__)


def __getattr__(name: str) -> Any:
    if name == "load":  # needs pandas, which `import entryclip` does not
        return importlib.import_module("entryclip.lab.engine.frame").load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
