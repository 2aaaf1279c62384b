"""The losses of each method by dose, and the dose from which on a clip pays."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...engine.study import Row
from ...lm.train.training_methods import find
from ..intervals import Interval, student_interval
from .corruption import CLEAN
from .study import DoseRun

AUTO = ("adamw-auto", "post-auto", "muon-auto", "pre-auto")
CORRUPTION_NAMES = {"cauchy": "Cauchy entries", "bits": "flipped exponent bits"}


class Panel(NamedTuple):
    """All methods on one optimizer under one corruption.

    losses      of each method at each dose: an array over the seeds that all of them have, as `DoseRun.counted`
    still       the loss of standing still
    lost        of each method at each dose, how many of these runs diverged or ended above the loss of standing still
    """

    baseline: str  # the method without a clip
    corruption: str
    doses: tuple[float, ...]  # from 0 upwards
    losses: dict[str, dict[float, NDArray[np.float64]]]
    still: float
    lost: dict[str, dict[float, int]]

    def mean(self, method: str, dose: float) -> float:
        """The mean loss over the seeds."""
        return float(self.losses[method][dose].mean())

    def best_of(self, methods: Sequence[str], dose: float) -> str:
        """The one of these methods with the lowest mean loss at a dose."""
        return min(methods, key=lambda name: self.mean(name, dose))

    def against(self, rival: str, method: str, dose: float) -> Interval:
        """The mean paired difference of a method to a rival at a dose, with Student's interval over the seeds."""
        return student_interval(self.losses[method][dose] - self.losses[rival][dose])

    def against_none(self, method: str, dose: float) -> Interval:
        """The same difference to the method without a clip."""
        return self.against(self.baseline, method, dose)

    def pays_from(self, method: str) -> float | None:
        """The lowest dose above 0 from which on the interval lies below 0, at every higher one too; None: at none."""
        found = None
        for dose in reversed(self.doses):
            if not dose or not self.against_none(method, dose).high < 0:
                break
            found = dose
        return found


def panels_of(rows: Sequence[Row]) -> list[Panel]:
    """Group the runs; a dose that lacks a run of any method and seed is left out until it is complete."""
    runs = DoseRun.from_rows(rows)
    corruptions = [name for name in dict.fromkeys(run.corruption for run in runs) if name != CLEAN]
    optimizers = dict.fromkeys(find(run.method).optimizer for run in runs)  # named as the method without a clip
    found = [_panel([r for r in runs if find(r.method).optimizer == o], o, c) for o in optimizers for c in corruptions]
    return [panel for panel in found if panel]


def _panel(runs: Sequence[DoseRun], baseline: str, corruption: str) -> Panel | None:
    here = [run for run in runs if run.corruption in (corruption, CLEAN)]
    by_cell = {(run.method, run.rate, run.seed): run for run in here}
    methods = list(dict.fromkeys(run.method for run in here))
    seeds = sorted({run.seed for run in here})

    def whole(dose: float) -> bool:
        return all((method, dose, seed) in by_cell for method in methods for seed in seeds)

    doses = tuple(dose for dose in sorted({run.rate for run in here}) if whole(dose))
    if baseline not in methods or not doses:
        return None
    cells = {m: {d: [by_cell[m, d, seed] for seed in seeds] for d in doses} for m in methods}
    losses = {m: {d: np.array([run.counted for run in own]) for d, own in row.items()} for m, row in cells.items()}
    lost = {m: {d: sum(run.is_lost for run in own) for d, own in row.items()} for m, row in cells.items()}
    return Panel(baseline, corruption, doses, losses, here[0].still, lost)
