"""Whether the lemmas' bounds hold, and how far above the exact values they are."""

from collections.abc import Sequence

from ...engine.study import Claim, Row
from .study import EntryBounds, RateBounds


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the bounds on bias, variance and rate with the exact values."""
    entries = EntryBounds.from_rows(rows)
    cost = [rate.cost for rate in RateBounds.from_rows(rows)]
    return [
        _bounded("relative bias", [entry.rho / entry.exact_rho for entry in entries]),
        _bounded("variance", [entry.variance / entry.exact_variance for entry in entries]),
        Claim(
            "looseness costs the rates a factor between 1 and 4",
            f"rate / rate with exact values from {min(cost):.2f} to {max(cost):.2f}",
            min(cost) >= 1 and max(cost) <= 4,
        ),
    ]


def _bounded(name: str, ratios: list[float]) -> Claim:
    return Claim(
        f"the exact {name} is below its bound at every threshold",
        f"bound / exact from {min(ratios):.2f} to {max(ratios):.1f}",
        min(ratios) >= 1,
    )
