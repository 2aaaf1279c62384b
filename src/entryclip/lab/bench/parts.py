"""The parts of `entryclip bench`, by name: what each measures, and whether it runs on a device."""

import importlib
from collections.abc import Iterator

from .timing import Result

STEPS = "steps"
METHODS = "methods"  # the training methods of the language model, those of others too: not a part of `all`
# Everything beside torch, numpy and the paper's listing on a CPU; a new part is a module with `run()` and a name here.
ON_CPU = ("quantile", "matrix", "clip", "optimizers", "noise", "diagnostics", "probe", "regression", "training")
NAMES = (STEPS, *ON_CPU, METHODS)


def check_parts(names: tuple[str, ...], device: str) -> tuple[str, ...]:
    """Return the parts that these names ask for; `all` are those of a CPU, which have the steps among them."""
    for name in names:
        if name not in (*NAMES, "all"):
            raise ValueError(f"unknown part {name!r}: choose from {', '.join(NAMES)}, or all")
        if device != "cpu" and name != STEPS:
            raise ValueError(f"{name} is measured on a CPU only: on {device} use steps")
    return ON_CPU if "all" in names else tuple(dict.fromkeys(names))


def run(name: str, device: str) -> Iterator[Result]:
    """Yield the lines of one part."""
    module = importlib.import_module(f".{name}", __package__)
    yield from module.run(device) if name == STEPS else module.run()
