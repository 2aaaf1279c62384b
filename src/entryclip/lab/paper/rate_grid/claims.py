"""Whether a method ends below the one without a clip, each at its own best rate and warm-up; tested together."""

from collections.abc import Sequence

from ...engine.study import Claim, Row
from ..paired_claims import PairedClaim, judge
from .comparison import Grid, arm_name, place_in_words


def claims(rows: Sequence[Row]) -> list[Claim]:
    """One claim for each method and level that has a method without a clip beside it."""
    grid = Grid.from_rows(rows)
    arms, made = list(grid.best), []
    for arm, cell in grid.best.items():
        baseline = grid.baseline_of(arm)
        if baseline is not None:
            claim = f"{arm_name(arm, arms)} ends below {arm_name(baseline.arm)}, each at its best rate and warm-up"
            notes = [
                f"{arm_name(each.arm)}: {place_in_words(each, grid.cells_of(each.arm))}" for each in (baseline, cell)
            ]
            made.append(PairedClaim(claim, grid.differences(cell, baseline), notes=tuple(notes)))
    return judge(made)
