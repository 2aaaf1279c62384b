"""Two bounds on what `auto()` may cost, fixed before the runs: on the mean paired difference and on its interval."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...engine.study import Claim, Row
from ..intervals import Interval, nats, student_interval
from ..lm_methods import BASELINES, METHOD_NAMES
from .study import NoHarmRun

MEAN_BOUND, UPPER_BOUND = 0.005, 0.015  # nats


class Pairs(NamedTuple):
    """The runs of a method with `auto()`, and those without it that have the same seeds."""

    clipped: list[NoHarmRun]
    plain: list[NoHarmRun]

    @property
    def differences(self) -> NDArray[np.float64]:
        """The final loss less that without a clip, for each seed; NaN where either run diverged."""
        both = zip(self.clipped, self.plain, strict=True)
        return np.array([_number(a.loss) - _number(b.loss) for a, b in both])

    @property
    def equal(self) -> int:
        """The number of seeds whose two runs end with the same weights to the bit."""
        return sum(a.weights == b.weights for a, b in zip(self.clipped, self.plain, strict=True))


def claims(rows: Sequence[Row]) -> list[Claim]:
    """One claim for each method with `auto()`."""
    return [_claim(method, pairs) for method, pairs in pairs_of(rows).items()]


def pairs_of(rows: Sequence[Row]) -> dict[str, Pairs]:
    """Pair the runs of each method with its baseline's; a method or seed without a partner is left out."""
    runs = {(run.method, run.seed): run for run in NoHarmRun.from_rows(rows)}
    found: dict[str, Pairs] = {}
    for (method, seed), run in sorted(runs.items(), key=lambda item: item[0][1]):
        plain = runs.get((BASELINES.get(method, ""), seed))
        if plain:
            pairs = found.setdefault(method, Pairs([], []))
            pairs.clipped.append(run)
            pairs.plain.append(plain)
    return {method: found[method] for method in BASELINES if method in found}


def interval_of(pairs: Pairs) -> Interval:
    """The mean paired difference with Student's interval."""
    return student_interval(pairs.differences)


def _claim(method: str, pairs: Pairs) -> Claim:
    found, count = interval_of(pairs), len(pairs.clipped)
    holds = found.value <= MEAN_BOUND and found.high <= UPPER_BOUND
    return Claim(
        f"{METHOD_NAMES[method]} costs at most {MEAN_BOUND:g} nats, and {UPPER_BOUND:g} at the interval's upper end",
        f"final loss {nats(found)} ({count} seeds{'' if count > 1 else ': no interval'}), {equal_in_words(pairs)}; "
        f"{actions_in_words(pairs.clipped)}",
        holds,
    )


def equal_in_words(pairs: Pairs) -> str:
    """Say of how many seeds the runs with and without a clip are equal to the bit."""
    count = len(pairs.clipped)
    return f"{'all' if pairs.equal == count else pairs.equal or 'none'} of {count} pairs equal to the bit"


def actions_in_words(runs: Sequence[NoHarmRun]) -> str:
    """Say how much the rule did, over all runs."""

    def share(part: str, whole: str) -> float:
        return sum(getattr(run, part) for run in runs) / max(sum(getattr(run, whole) for run in runs), 1)

    return (
        f"an entry changed in {share('steps_changed', 'steps'):.2%} of the steps, "
        f"{share('entries_changed', 'entries'):.2g} of all entries; matrices clipped "
        f"{share('matrix_steps_clipped', 'matrix_steps'):.2%} of the time, touched by the guard alone "
        f"{share('matrix_steps_guarded', 'matrix_steps'):.2%}"
    )


def _number(loss: float | None) -> float:
    return float("nan") if loss is None else loss
