"""The probe's findings as a table: one line for each matrix."""

from collections.abc import Sequence

from .localization import Localization
from .measured import MatrixNoise

NARROW = ("matrix", "R-hat, k = 1", "spiked", "advice", "sure")  # what fits into 80 columns
HEADINGS = ("matrix", "shape", "R-hat, k = 1", "plain mean's", "tail", "spiked", "rho", "advice", "sure")


def cells(found: MatrixNoise) -> tuple[str, ...]:
    """A line of the table, under `HEADINGS`."""
    advice = found.recommendation
    tail = "" if found.tail is None else found.tail.verdict
    if found.tail is not None and found.tail.verdict == "power law":
        tail = f"index {found.tail.index:.2g} [{found.tail.interval[0]:.2g}, {found.tail.interval[1]:.2g}]"
    rho = "" if found.correlation is None else f"{found.correlation.rho:.2f}"
    words = f"none: {advice.verdict}" if advice.clip is None else f"{advice.clip}, {advice.stage}"
    return (
        found.name,
        f"{found.shape[0]} x {found.shape[1]}",
        _ratio(found.localization, band=True),
        _ratio(found.plain, band=False),
        tail,
        f"{len(found.spikes)} of {found.samples}" if found.samples else "",
        rho,
        words if advice.verdict != "rare spikes" else f"just in case {words}",
        advice.sure,
    )


def _ratio(found: Localization | None, *, band: bool) -> str:
    if found is None:
        return ""
    low, high = found.band()[0]
    return f"{found.median[0]:.2g}" + (f" [{low:.2g}, {high:.2g}]" if band else "")


def aligned(matrices: Sequence[MatrixNoise], headings: Sequence[str] = HEADINGS) -> str:
    """The table as plain text, or some columns of it."""
    rows = [dict(zip(HEADINGS, row, strict=True)) for row in (HEADINGS, *(cells(each) for each in matrices))]
    widths = {name: max(len(row[name]) for row in rows) for name in headings}
    return "\n".join("  ".join(row[name].ljust(widths[name]) for name in headings).rstrip() for row in rows)
