"""Holm's correction: p-values of several claims, adjusted so that all of them may be read at once.

Of m claims that are false, each tested at 5 %, one is found true by chance with a probability of up to 5 m %. With
Holm's adjusted p-values the probability that *any* false claim falls below 5 % is at most 5 %, however the tests depend
on each other (S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6, 1979). In
ascending order p_(1) <= ... <= p_(m),

    adjusted p_(i) = max over j <= i of min(1, (m - j + 1) p_(j))
"""

import math
from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the adjusted p-values, in the order of those given; NaN, a claim that could not be tested, counts as 1.

    >>> [round(p, 3) for p in holm([0.04, 0.01, 0.03])]
    [0.06, 0.03, 0.06]
    """
    known = [1.0 if math.isnan(p) else p for p in p_values]
    if bad := [p for p in known if not 0 <= p <= 1]:
        raise ValueError(f"p-values must be in [0, 1], got {bad[0]}")
    adjusted, largest = [1.0] * len(known), 0.0
    for rank, i in enumerate(sorted(range(len(known)), key=known.__getitem__)):
        largest = max(largest, min(1.0, (len(known) - rank) * known[i]))
        adjusted[i] = largest
    return adjusted
