"""Whether the theorems' bounds hold in the runs, and how fast the measured averages fall."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from ....theory import METHODS
from ...engine.study import Claim, Row
from .study import Descent


class Power(NamedTuple):
    """The estimated power p in `size ~ iterations^p`, with the ends of its 95 % interval."""

    mean: float
    low: float
    high: float


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
    for operator in METHODS:
        mine = [run for run in runs if (run.stage, run.operator, run.batch) == (stage, operator, batch)]
        found, bound = power_of_iterations(mine), power_of_iterations(mine, "bound").mean
        words.append(f"{operator} {found.mean:.2f} [{found.low:.2f}, {found.high:.2f}] (bound {bound:.2f})")
        fast.append(found.mean <= bound + 0.05)
    name = "K" if stage == "post" else f"T, N = {batch}"
    claim = f"{stage}-clipping: the measured average falls at least as fast as the bound, by its power of {name}"
    return Claim(claim, ", ".join(words), all(fast))


def power_of_iterations(runs: Sequence[Descent], field: str = "measured") -> Power:
    """Fit log(`field`) against log(iterations) for each seed; return the mean slope with its 95 % interval."""
    points: dict[int, list[tuple[float, float]]] = {}
    for run in runs:
        points.setdefault(run.seed, []).append((math.log(run.iterations), math.log(getattr(run, field))))
    slopes = [float(stats.linregress(*np.array(each).T).slope) for each in points.values()]
    half = float(stats.t.ppf(0.975, len(slopes) - 1) * np.std(slopes, ddof=1) / math.sqrt(len(slopes)))
    mean = float(np.mean(slopes))
    return Power(mean, mean - half, mean + half)
