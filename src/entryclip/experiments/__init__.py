"""Every experiment of the paper, one module each: `Config -> run(config) -> rows -> plot(rows), claims(rows)`."""

import importlib
from types import ModuleType

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
    "regression",
)


def check_name(name: str) -> str:
    """`name`, if there is such an experiment."""
    if name not in NAMES:
        raise ValueError(f"unknown experiment {name!r}: choose from {', '.join(NAMES)}, or all")
    return name


def find(name: str) -> ModuleType:
    """The module of an experiment."""
    return importlib.import_module(f".{check_name(name).replace('-', '_')}", __name__)
