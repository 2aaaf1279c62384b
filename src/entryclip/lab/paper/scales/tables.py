"""The gains by model, kind of matrix and source, before and after the scales are divided out."""

from collections.abc import Sequence

import numpy as np

from ...engine.study import Row
from .study import GradientRow


def tables(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return one table with a line for each kind of matrix, of a batch's gradient and of single samples' noise."""
    return {"Gain of the best clip, as it is and standardised, over all runs and stages": by_layer(rows)}


def by_layer(rows: Sequence[Row]) -> list[Row]:
    """Return a line for each kind of matrix and source: gains and shares in the variance of log|x|."""
    found = GradientRow.from_rows(rows)
    lines = []
    for layer, source in dict.fromkeys((row.layer, row.source) for row in sorted(found, key=lambda row: row.source)):
        here = [row for row in found if (row.layer, row.source) == (layer, source)]
        raw, standardized = ([getattr(row, name) for row in here] for name in ("raw", "standardized"))
        shares = [np.median([getattr(row, f"{side}_share") for row in here]) for side in ("rows", "columns", "rest")]
        lines.append(
            {
                "matrices": layer,
                "of": source,
                "count": len(here),
                "raw: median": f"{np.median(raw):.3g}",
                "raw: largest": f"{max(raw):.3g}",
                "standardised: median": _near_one(np.median(standardized)),
                "standardised: 90 %": _near_one(np.quantile(standardized, 0.9)),
                "standardised: largest": f"{max(standardized):.3g}",
                "rows, columns, rest": " / ".join(f"{part:.0%}" for part in shares),
            }
        )
    return lines


def _near_one(gain: float) -> str:
    """Write a gain: with all of its thousandths where it is close to 1.

    >>> _near_one(1.0049), _near_one(98128471912.6)
    ('1.005', '9.81e+10')
    """
    return f"{gain:.3f}" if gain < 10 else f"{gain:.3g}"
