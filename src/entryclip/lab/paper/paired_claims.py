"""Claims that one method ends below another, decided together by their final losses on common seeds.

Each is tested by Student's test of the paired differences, one for each seed that both methods have. It holds where the
mean is below 0 and the p-value, corrected for the number of claims (`holm`), is below .05. A single seed decides
nothing.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..engine.study import Claim
from .holm import holm
from .intervals import LEVEL, nats, paired_p, student_interval


class PairedClaim(NamedTuple):
    """The claim that a method's final loss is below another's, before it is judged."""

    claim: str
    differences: NDArray[np.float64]  # the method's loss less the other's, by common seed; NaN: a run diverged
    before: str = ""  # what was measured beside it: a description, which decides nothing
    notes: tuple[str, ...] = ()  # what the comparison rests on beside its seeds
    what: str = "final loss"  # of which these are differences


def judge(claims: Sequence[PairedClaim]) -> list[Claim]:
    """Judge claims together, in their order.

    >>> low, wide = np.array([-0.3, -0.2, -0.25]), np.array([-0.3, 0.2, -0.25])
    >>> for each in judge([PairedClaim("a ends below b", low), PairedClaim("c ends below d", wide)]):
    ...     print(each.holds, each.measured)
    True final loss -0.2500 [-0.3742, -0.1258] (3 seeds; p = 0.013, Holm over 2 claims 0.026)
    False final loss -0.1167 [-0.8007, +0.5674] (3 seeds; p = 0.54, Holm over 2 claims 0.54)
    """
    raw = [paired_p(each.differences) for each in claims]
    found = zip(claims, raw, holm(raw), strict=True)
    return [_judged(each, p, adjusted, len(claims)) for each, p, adjusted in found]


def common_differences(losses: Mapping[int, float], other: Mapping[int, float]) -> NDArray[np.float64]:
    """The final losses by seed less those of another method, over the seeds that both have.

    >>> common_differences({1: 3.0, 2: 3.5}, {2: 3.0, 3: 9.0})
    array([0.5])
    """
    return np.array([losses[seed] - other[seed] for seed in losses if seed in other], dtype=float)


def interval_in_words(differences: NDArray[np.float64]) -> str:
    """A mean difference with its interval, as text; without an interval for a single seed."""
    if not len(differences):
        return "no seed in common"
    if not np.isfinite(differences).all():
        return "a run diverged"
    if len(differences) == 1:
        return f"{differences[0]:+.4f}, no interval"
    return nats(student_interval(differences))


def _judged(each: PairedClaim, p: float, adjusted: float, tested: int) -> Claim:
    count = len(each.differences)
    seeds = f"{count} seed{'' if count == 1 else 's'}"
    chance = "not tested" if math.isnan(p) else f"p = {p:.2g}"
    of = f"Holm over {tested} claims {adjusted:.2g}" if tested > 1 else "the only claim tested"
    basis = "; ".join([seeds, f"{chance}, {of}", *each.notes])
    below = not math.isnan(p) and float(each.differences.mean()) < 0
    measured = f"{each.before}{each.what} {interval_in_words(each.differences)} ({basis})"
    return Claim(each.claim, measured, below and adjusted < 1 - LEVEL)
