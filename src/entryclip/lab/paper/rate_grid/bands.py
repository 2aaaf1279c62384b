"""The loss on frequent and on rare tokens: each method less the one without a clip, at their best cells, by band.

The paper takes the heavy tails of gradients for the work of rare expressions. If clips help there, then the difference
from the method without a clip is to grow from frequent to rare tokens. Methods that are no clips show what such a
difference is without one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...engine.study import Row
from ...lm.data.token_frequency import BANDS
from .comparison import Arm, Grid
from .study import Cell, RateGridRun

LEAST_TOKENS = 1000  # of the validation text in the band that counts as rare: with fewer, its loss is a matter of luck


class BandDifferences(NamedTuple):
    """The loss on the validation tokens of one band: a method's less that of its baseline, for each common seed."""

    arm: Arm
    baseline: Cell
    band: str  # one of BANDS
    tokens: int  # of the band, in the validation text
    unclipped: float  # the baseline's mean loss on them
    differences: NDArray[np.float64]


def band_differences(rows: Sequence[Row]) -> list[BandDifferences]:
    """Compare the methods of a grid band by band, over the reported seeds; bands without a token are left out."""
    grid, by_cell = Grid.from_rows(rows), _measured(rows)
    found = []
    for arm, cell in grid.best.items():
        baseline = grid.baseline_of(arm)
        if baseline is None:
            continue
        own, other = by_cell.get(cell, {}), by_cell.get(baseline, {})
        seeds = [seed for seed in own if seed in other]
        for i, band in enumerate(BANDS):
            losses = [(own[seed].band_losses[i], other[seed].band_losses[i]) for seed in seeds]
            pairs = [(a, b) for a, b in losses if a is not None and b is not None]
            if pairs:
                a, b = np.array(pairs, dtype=float).T
                tokens = own[seeds[0]].band_tokens[i]
                found.append(BandDifferences(arm, baseline, band, tokens, float(b.mean()), a - b))
    return found


def gains_on_rare_tokens(rows: Sequence[Row]) -> list[tuple[BandDifferences, BandDifferences, NDArray[np.float64]]]:
    """Return for each method its rarest band of enough tokens, the most frequent one, and how they differ by seed.

    Below 0 a method gains more on rare tokens than on frequent ones.
    """
    by_arm: dict[Arm, list[BandDifferences]] = {}
    for each in band_differences(rows):
        by_arm.setdefault(each.arm, []).append(each)
    found = []
    for bands in by_arm.values():
        frequent, rare = bands[0], [each for each in bands if each.tokens >= LEAST_TOKENS][-1:]
        if rare and rare[0] is not frequent and len(rare[0].differences) == len(frequent.differences):
            found.append((rare[0], frequent, rare[0].differences - frequent.differences))
    return found


def _measured(rows: Sequence[Row]) -> dict[Cell, dict[int, RateGridRun]]:
    """Return the reported runs that did not diverge, by cell and seed."""
    found: dict[Cell, dict[int, RateGridRun]] = {}
    for run in RateGridRun.from_rows(rows):
        if run.stage == "report" and run.band_losses:
            found.setdefault(run.cell, {})[run.seed] = run
    return found
