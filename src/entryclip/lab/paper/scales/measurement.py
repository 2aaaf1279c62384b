"""What the best entry-wise clip gains on one matrix, as it is and with the scales of rows and columns divided out."""

import numpy as np

from ....arrays import Array, double, to_numpy
from ....diagnostics import scales
from ....diagnostics.probe.efficiency import best_efficiency
from ....quantiles.histogram import Histogram
from ....scales import ROUNDS
from ...engine.study import Row


def best_gain(x: Array) -> float:
    """Return the largest relative efficiency of a clip, hard or smooth at any quantile, on the non-zero entries of x.

    It is 1 where no clip is better than none.

    >>> round(best_gain(np.random.default_rng(0).standard_normal((300, 300))), 2)
    1.0
    """
    histogram = Histogram.of(x)
    return max(best_efficiency(histogram, operator).factor for operator in ("hard", "smooth"))


def measure(x: Array) -> Row:
    """Return the gains on the matrix `x`, (m, n), and where the variance of log|x| comes from.

    raw, standardized       the gain of the best clip before and after the scales are divided out
    mean_standardized       the same with scales that are mean absolute values, which are simpler and not robust
    rows_share, ...         shares of rows, columns and the rest in the variance of log|x|
    rest                    the rest itself, the variance of log|z|: pi^2 / 8 = 1.23 for Gaussian entries
    largest                 the largest |z|, z the standardised entries
    entries                 the number of entries that are not 0
    """
    found = scales(x)
    share = found.share.tolist()
    return {
        "raw": best_gain(x),
        "standardized": best_gain(found.standardized),
        "mean_standardized": best_gain(over_mean_scales(x)),
        "rows_share": share[0],
        "columns_share": share[1],
        "rest_share": share[2],
        "rest": float(found.variance[2]),
        "largest": float(np.abs(found.standardized).max()),
        "entries": int(np.count_nonzero(found.standardized)),
    }


def over_mean_scales(x: Array) -> np.ndarray:
    """Divide the rows and columns of `x`, (m, n), in turn by their mean absolute values, three times.

    These scales are not robust: a row with one large entry is divided by a large scale, which hides part of that entry.
    """
    z = to_numpy(double(x)).copy()
    for _ in range(ROUNDS):
        for axis in (1, 0):
            mean = np.abs(z).mean(axis, keepdims=True)
            z /= np.where(mean > 0, mean, 1)
    return z
