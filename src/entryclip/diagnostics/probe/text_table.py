"""A probe's findings as a text table, one line for each matrix."""

from collections.abc import Sequence

from ..localization import Localization
from ..tails import TailIndex, TailVerdict
from .matrix_noise import MatrixNoise
from .recommendation import Recommendation, Verdict

HEADINGS = ("matrix", "shape", "R-hat, k = 1", "plain mean's", "tail", "spiked", "rho", "advice", "sure")
NARROW = ("matrix", "R-hat, k = 1", "spiked", "advice", "sure")  # the columns that fit into 80 characters


def cells(found: MatrixNoise) -> tuple[str, ...]:
    """Return the line of one matrix, a cell for each of `HEADINGS`."""
    return (
        found.name,
        f"{found.shape[0]} x {found.shape[1]}",
        _ratio(found.localization, band=True),
        _ratio(found.plain, band=False),
        _tail(found.tail),
        f"{len(found.spikes)} of {found.samples}" if found.samples else "",
        "" if found.correlation is None else f"{found.correlation.rho:.2f}",
        _advice(found.recommendation),
        found.recommendation.sure,
    )


def aligned(matrices: Sequence[MatrixNoise], headings: Sequence[str] = HEADINGS) -> str:
    """Return the table, or these columns of it, as plain text with aligned columns."""
    rows = [dict(zip(HEADINGS, row, strict=True)) for row in (HEADINGS, *(cells(each) for each in matrices))]
    widths = {name: max(len(row[name]) for row in rows) for name in headings}
    return "\n".join("  ".join(row[name].ljust(widths[name]) for name in headings).rstrip() for row in rows)


def _ratio(found: Localization | None, *, band: bool) -> str:
    if found is None:
        return ""
    low, high = found.band()[0]
    return f"{found.median[0]:.2g}" + (f" [{low:.2g}, {high:.2g}]" if band else "")


def _tail(tail: TailIndex | None) -> str:
    if tail is None or tail.verdict != TailVerdict.POWER_LAW:
        return "" if tail is None else tail.verdict
    return f"index {tail.index:.2g} [{tail.interval[0]:.2g}, {tail.interval[1]:.2g}]"


def _advice(advice: Recommendation) -> str:
    words = f"none: {advice.verdict}" if advice.clip is None else f"{advice.clip}, {advice.stage}"
    return words if advice.verdict != Verdict.RARE_SPIKES else f"just in case {words}"
