"""The studies of the paper, a folder each: study.py (config, rows), figures.py, claims.py, and `STUDY` over them."""

import importlib
from typing import Any

from ..engine.study import Study

# A new study is one more name here; `reproduce all` runs them in this order.
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
    "scales",
    "regression",
    "untuned",
    "pretraining",
    "spike",
    "rate-grid",
    "no-harm",
    "dose-response",
)


def check_name(name: str) -> str:
    """Return `name`, if there is a study of that name."""
    if name not in NAMES:
        raise ValueError(f"unknown study {name!r}: choose from {', '.join(NAMES)}, or all")
    return name


def find(name: str) -> Study[Any]:
    """The study of that name; its modules are imported on first use."""
    package = importlib.import_module(f".{check_name(name).replace('-', '_')}", __name__)
    study: Study[Any] = package.STUDY
    return study
