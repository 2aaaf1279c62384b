"""Whether `auto()`, with only its learning rate tuned, keeps up with the paper's clips at their best quantile."""

from collections.abc import Sequence
from typing import NamedTuple

from ...engine.study import Claim, Row
from .study import UntunedRun

STAGE_NAMES = {"post": "gradient descent", "pre": "spectral gradient descent"}


class Comparison(NamedTuple):
    """The best of `auto()` over the better of the paper's two clips, both tuned, for one problem."""

    d: int
    stage: str
    alpha: float
    paper: float
    auto: float  # with all of its learning rates
    auto_coarse: float  # with the paper's learning rates alone
    is_inside: bool  # the best learning rate of `auto()` is not the smallest or the largest

    @property
    def ratio(self) -> float:
        return self.auto / self.paper


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Two bounds on the ratio of final losses, fixed before these seeds were run, for each size and stage."""
    found = comparisons(UntunedRun.from_rows(rows))
    return [claim for d in sorted({c.d for c in found}) for stage in STAGE_NAMES for claim in _bounds(found, d, stage)]


def _bounds(found: Sequence[Comparison], d: int, stage: str) -> list[Claim]:
    """The claims of one size and stage."""
    here = [c for c in found if (c.d, c.stage) == (d, stage)]
    light, heavy = [c for c in here if c.alpha <= 0.1], [c for c in here if c.alpha >= 0.5]
    claims = []
    for some, bound, words in ((light, 1.05, "up to alpha = .1"), (heavy, 0.75, "from alpha = .5 on")):
        if not some:
            continue
        worst = max(some, key=lambda c: c.ratio)
        text = ", ".join(f"{c.ratio:.2f} at {c.alpha:g}" for c in some)
        at_edge = "" if all(c.is_inside for c in some) else "; some best rate at the edge of the grid"
        same_rates = max(c.auto_coarse / c.paper for c in some)
        claims.append(
            Claim(
                f"{STAGE_NAMES[stage]}, d = {d}: auto() without a threshold ends at no more than {bound:g} times the "
                f"better of the paper's tuned clips, {words}",
                f"{text} (at the paper's six learning rates alone at most {same_rates:.2f}{at_edge})",
                worst.ratio <= bound,
            )
        )
    return claims


def comparisons(runs: Sequence[UntunedRun]) -> list[Comparison]:
    """Compare the best settings, problem by problem, smooth `auto()` being the default."""
    found = []
    for d, stage, alpha in sorted({(run.d, run.stage, run.alpha) for run in runs}):
        here = [run for run in runs if (run.d, run.stage, run.alpha) == (d, stage, alpha)]
        paper = min(run.loss for run in here if run.method in ("hard", "smooth"))
        own = [run for run in here if run.method == "auto, smooth"]
        best = min(own, key=lambda run: run.loss)
        inside = min(run.lr for run in own) < best.lr < max(run.lr for run in own)
        coarse = min(run.loss for run in own if not run.is_fine)
        found.append(Comparison(d, stage, alpha, paper, best.loss, coarse, inside))
    return found
