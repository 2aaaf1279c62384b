"""The noise by stage of training, as it is and with the scales of rows and columns divided out: a line for each run."""

from collections.abc import Mapping, Sequence

import numpy as np

from ...engine.study import Row
from .runs import by_run

CAPTION = (
    "The noise of the hidden matrices by stage of training, as it is and with the scales of rows and columns divided "
    "out (standardised): the median R-hat along the first direction, against Gaussian noise of equal variances and "
    "against Gaussian noise with these scales; what the best entry-wise clip would gain (median and largest over the "
    "matrices; 1: no clip helps); matrices whose tail is a power law; samples in which one entry carries more than "
    "half of sigma_1; and the median shares of rows, columns and the rest in the variance of log|E|"
)


def tables(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """A line for each run and stage; no table for rows of earlier versions, which lack the standardised noise."""
    lines = [
        _line(seed, step, measured)
        for seed, stages in by_run(rows).items()
        for step, those in stages.items()
        if (measured := [row for row in those.values() if row.get("standardized_gain")])
    ]
    return {CAPTION: lines} if lines else {}


def _line(seed: int, step: int, rows: Sequence[Row]) -> Row:
    shares = np.array([[row["log_rows"], row["log_columns"], row["log_rest"]] for row in rows])
    shares = np.median(shares / shares.sum(axis=1, keepdims=True), axis=0)
    return {
        "run": seed,
        "step": step,
        "R-hat": f"{np.median([row['r_hat'][0] for row in rows]):.2g}",
        "standardised R-hat": _median_of([row["standardized_r_hat"] for row in rows]),
        "gain": _gains([row["raw_gain"] for row in rows]),
        "standardised gain": _gains([row["standardized_gain"] for row in rows]),
        "power laws": _power_laws([row["tail"] for row in rows]),
        "standardised power laws": _power_laws([row["standardized_tail"] for row in rows]),
        "spiked": f"{np.mean([row['spiked'] for row in rows]):.2%}",
        "standardised spiked": f"{np.mean([row['standardized_spiked'] for row in rows]):.2%}",
        "rows, columns, rest": " / ".join(f"{share:.0%}" for share in shares),
    }


def _median_of(ratios: Sequence[list[float] | None]) -> str:
    measured = [each[0] for each in ratios if each]
    return f"{np.median(measured):.2g}" if measured else ""


def _gains(gains: Sequence[float]) -> str:
    return f"{np.median(gains):.2f}, {max(gains):.3g}"


def _power_laws(tails: Sequence[str | None]) -> str:
    return f"{sum(tail == 'power law' for tail in tails)} of {len(tails)}"
