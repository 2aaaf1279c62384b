"""The spike score of a series of losses: the percentage of values far away from the running mean of those before.

OLMo 2 (arXiv:2501.00656, Section 3.2) counts values at least 7 standard deviations away from the mean of the last
1000; AdaGC (arXiv:2502.11034) reports such a score for its runs. The replay is far shorter, so the window is 50
steps, and a score at 3 standard deviations is given as well. Only batches without corruption count, in the window
too: the loss of a corrupted batch is high under every method.
"""

from collections.abc import Sequence
from statistics import fmean, pstdev

WINDOW = 50
DEVIATIONS = (3.0, 7.0)


def spike_score(
    before: Sequence[float], after: Sequence[float | None], deviations: float, window: int = WINDOW
) -> float:
    """The percentage of the values `after` that are spikes, with the values `before` as the first window.

    A value counts for the windows of those that follow it, spike or not. None, a run that diverged, is a spike.

    >>> spike_score([1.0, 2.0, 1.0, 2.0], [1.5, 6.0, 1.0, None], deviations=7.0)
    50.0
    """
    if len(before) < 2 or not after:
        raise ValueError(f"a score needs two values before and one after, got {len(before)} and {len(after)}")
    series, spikes = list(before), 0
    for value in after:
        last = series[-window:]
        if value is None or 0 < abs(value - fmean(last)) >= deviations * pstdev(last):
            spikes += 1
        if value is not None:
            series.append(value)
    return 100 * spikes / len(after)
