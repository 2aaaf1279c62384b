"""Matrix regression under contaminated gradients: the paper's synthetic study (app:synthetic), and beyond it."""

from collections.abc import Iterator
from typing import Any

from .config import Config, units
from .grid import run_unit

TITLE = "Regression with contaminated gradients"

__all__ = ["TITLE", "Config", "run", "run_unit", "units"]


def run(config: Config) -> Iterator[dict[str, Any]]:
    """All rows, unit by unit."""
    for unit in units(config):
        yield from run_unit(config, unit)
