"""The studies of the paper, a folder each: study.py (config, rows), figures.py, claims.py, and `STUDY` over them."""

import importlib
from typing import Any

from ..engine.study import Claim, Study, no_more_units, no_tables, one_unit

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
    "regression",
    "pretraining",
    "spike",
)


def check_name(name: str) -> str:
    """Return `name`, if there is a study of that name."""
    if name not in NAMES:
        raise ValueError(f"unknown experiment {name!r}: choose from {', '.join(NAMES)}, or all")
    return name


def find(name: str) -> Study[Any]:
    """The study of that name; its modules are imported on first use."""
    package = importlib.import_module(f".{check_name(name).replace('-', '_')}", __name__)
    return package.STUDY if "STUDY" in vars(package) else _adapted(name)


def _adapted(name: str) -> Study[Any]:
    """A study whose folder does not yet have a `STUDY`, made of the functions in its study.py."""
    module: Any = importlib.import_module(f".{name.replace('-', '_')}.study", __name__)
    named = vars(module)
    return Study(
        name=name,
        title=module.TITLE,
        config=module.Config,
        run_unit=module.run_unit if "units" in named else lambda config, piece: module.run(config),
        figures=module.plot,
        captions=module.CAPTIONS,
        claims=lambda rows: [Claim(**claim) for claim in module.claims(rows)],
        row_modules=(module,),
        units=named.get("units", one_unit),
        next_units=named.get("next_units", no_more_units),
        tables=named.get("tables", no_tables),
    )
