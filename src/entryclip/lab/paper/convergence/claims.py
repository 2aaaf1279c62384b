"""Whether the theorems' bounds hold in the runs, and how fast the measured averages fall."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from ....theory.entry import OPERATOR_BOUNDS
from ...engine.study import Claim, Row
from ..intervals import Interval, student_interval
from .study import Descent


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the measured averages with the bounds."""
    runs = Descent.from_rows(rows)
    ratios = [run.bound / run.measured for run in runs]
    shares = [run.bound / run.start for run in runs]
    return [
        Claim(
            "every bound says something: it is below the value at the start",
            f"bound / start from {min(shares):.2f} to {max(shares):.2f}",
            max(shares) < 1,
        ),
        Claim(
            "the bound holds in every run",
            f"{len(runs)} runs, bound / measured from {min(ratios):.1f} to {max(ratios):.0f}",
            min(ratios) >= 1,
        ),
        Claim(
            "so does the lemma with the exact bias and variance, which is tighter",
            f"it / measured from {min(run.sharper / run.measured for run in runs):.1f}",
            all(run.measured <= run.sharper < run.bound for run in runs),
        ),
        *(_falls_as_fast_as_the_bound(runs, stage) for stage in ("post", "pre")),
    ]


def _falls_as_fast_as_the_bound(runs: Sequence[Descent], stage: str) -> Claim:
    """Compare the powers of the iterations in the measured average and in the bound, at the largest batch."""
    batch = max(run.batch for run in runs if run.stage == stage)
    words, fast = [], []
    for operator in OPERATOR_BOUNDS:
        mine = [run for run in runs if (run.stage, run.operator, run.batch) == (stage, operator, batch)]
        found, bound = power_of_iterations(mine), power_of_iterations(mine, "bound").value
        words.append(f"{operator} {found.value:.2f} [{found.low:.2f}, {found.high:.2f}] (bound {bound:.2f})")
        fast.append(found.value <= bound + 0.05)
    name = "K" if stage == "post" else f"T, N = {batch}"
    claim = f"{stage}-clipping: the measured average falls at least as fast as the bound, by its power of {name}"
    return Claim(claim, ", ".join(words), all(fast))


def power_of_iterations(runs: Sequence[Descent], field: str = "measured") -> Interval:
    """Fit the power p in `field ~ iterations^p` for each seed; return the mean over the seeds with its interval."""
    points: dict[int, list[tuple[float, float]]] = {}
    for run in runs:
        points.setdefault(run.seed, []).append((math.log(run.iterations), math.log(getattr(run, field))))
    return student_interval(np.array([stats.linregress(*np.array(each).T).slope for each in points.values()]))
