"""The methods of a grid at their own best rates and warm-ups, beside the method without a clip at its best."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...engine.study import Row
from ...lm.train import training_methods
from ..lm_methods import METHOD_NAMES
from ..paired_claims import common_differences
from .arms import split_tables
from .study import Cell, RateGridRun, Stage, best_cells

Arm = tuple[str, float | None]  # a method and its level


@dataclass(frozen=True)
class Grid:
    """The final losses of a grid, and the cell that each method's tuning chose."""

    losses: dict[Cell, dict[Stage, dict[int, float]]]  # by stage and seed; NaN where a run diverged
    best: dict[Arm, Cell]

    @classmethod
    def from_rows(cls, rows: Sequence[Row]) -> "Grid":
        """Gather the runs by cell."""
        losses: dict[Cell, dict[Stage, dict[int, float]]] = {}
        for run in RateGridRun.from_rows(rows):
            final = math.nan if run.loss is None else run.loss
            losses.setdefault(run.cell, {"tuning": {}, "report": {}})[run.stage][run.seed] = final
        return cls(losses, best_cells(rows))

    def cells_of(self, arm: Arm) -> list[Cell]:
        """The cells of a method and level."""
        return [cell for cell in self.losses if cell.arm == arm]

    def baseline_of(self, arm: Arm) -> Cell | None:
        """The best cell of the method without a clip that `arm` is compared with; None where it is that one."""
        name = baseline_name(arm[0])
        return None if name == arm[0] else self.best.get((name, None))

    def differences(self, cell: Cell, other: Cell, stage: Stage = "report") -> NDArray[np.float64]:
        """Final losses of a cell less those of another, for each seed that both have."""
        return common_differences(self.losses[cell][stage], self.losses[other][stage])


def baseline_name(method: str) -> str:
    """Return the method without a clip that a method is compared with: that of the optimizer which it changes.

    SPECTRA clips AdamW's update.

    >>> [baseline_name(method) for method in ("post-smooth+tables", "spectra", "normuon", "muon")]
    ['adamw', 'adamw', 'muon', 'muon']
    """
    return training_methods.find(split_tables(method)[0]).optimizer


def arm_name(arm: Arm, shown: Sequence[Arm] = ()) -> str:
    """The name of a method, with its level where `shown` has the method at several.

    >>> arm_name(("pre-smooth", 0.98), [("pre-smooth", 0.98), ("pre-smooth", 0.99)])
    'Muon, smooth shrinkage at 0.98'
    """
    method, level = arm
    own, with_tables = split_tables(method)
    name = METHOD_NAMES.get(own, own) + (", tables too" if with_tables else "")
    several = sum(each[0] == method for each in shown) > 1
    return f"{name} at {level:g}" if several and level is not None else name


def place_in_words(cell: Cell, cells: Sequence[Cell]) -> str:
    """Say which rate and warm-up were best, and whether better ones may lie beyond.

    >>> grid = [Cell("muon", None, lr, 0) for lr in (0.008, 0.016, 0.032)]
    >>> place_in_words(grid[1], grid), place_in_words(grid[2], grid)
    ('best at rate 0.016, inside its grid', 'best at rate 0.032, the edge of its grid')
    """
    rates = {each.lr for each in cells if each.warmup == cell.warmup}
    if len(rates) == 1:
        where = "the only one tried"
    else:
        where = "the edge of its grid" if cell.lr in (min(rates), max(rates)) else "inside its grid"
    several = len({each.warmup for each in cells}) > 1
    return f"best at rate {cell.lr:g}, {where}" + (f", warm-up {cell.warmup}" if several else "")
