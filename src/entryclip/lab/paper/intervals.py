"""Estimates with 95 % intervals over seeds, and how they are written."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


def student_interval(differences: NDArray[np.float64]) -> Interval:
    """The mean of paired differences, one for each seed, with Student's interval; infinite for a single pair.

    >>> Interval(*(round(float(x), 2) for x in student_interval(np.array([1.0, 2.0, 3.0]))))
    Interval(value=2.0, low=-0.48, high=4.48)
    """
    from scipy.stats import t

    mean, count = float(differences.mean()), len(differences)
    if count < 2:
        return Interval(mean, -math.inf, math.inf)
    width = float(t.ppf(0.5 + LEVEL / 2, count - 1) * differences.std(ddof=1) / math.sqrt(count))
    return Interval(mean, mean - width, mean + width)


def paired_p(differences: NDArray[np.float64]) -> float:
    """The two-sided p-value of Student's test that paired differences have mean 0; NaN where that cannot be tested.

    It is below .05 exactly where `student_interval` leaves out 0. A single pair cannot be tested, nor can pairs of
    which a run diverged.

    >>> round(paired_p(np.array([1.0, 2.0, 3.0])), 3)
    0.074
    """
    from scipy.stats import t

    count = len(differences)
    if count < 2 or not np.isfinite(differences).all():
        return math.nan
    mean, error = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(count)
    if error == 0:  # pairs that all differ by the same
        return 1.0 if mean == 0 else 0.0
    return float(2 * t.sf(abs(mean) / error, count - 1))


def nats(difference: Interval) -> str:
    """A difference of losses as text.

    >>> nats(Interval(-0.5, -0.75, -0.25))
    '-0.5000 [-0.7500, -0.2500]'
    """
    if math.isnan(difference.value):
        return "a run diverged"
    return f"{difference.value:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}]"
