"""Whether a method ends below the one without a clip, both at their best rate and warm-up; likewise on rare tokens."""

from collections.abc import Sequence

from ...engine.study import Claim, Row
from ..paired_claims import PairedClaim, judge
from .bands import gains_on_rare_tokens
from .comparison import Arm, Grid, arm_name, place_in_words


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Two claims for each method and level that has a method without a clip beside it: on all tokens, and on rare ones.

    Those of all tokens are corrected for their number together, and so are those of rare ones.
    """
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
    return [*judge(made), *judge(_of_rare_tokens(rows, arms))]


def _of_rare_tokens(rows: Sequence[Row], arms: Sequence[Arm]) -> list[PairedClaim]:
    """The paper conjectures that a clip gains where tokens are rare; the same is asked of methods that are no clips."""
    return [
        PairedClaim(
            f"{arm_name(rare.arm, arms)} gains more on tokens with {rare.band} occurrences per million "
            f"than on those with {frequent.band}",
            apart,
            what="difference of the differences from no clip",
        )
        for rare, frequent, apart in gains_on_rare_tokens(rows)
    ]
