"""A probe's findings as a text table, one line for each matrix."""

from collections.abc import Sequence

from ...noise.fit import Fit
from ..localization import Localization
from ..tails import TailIndex, TailVerdict
from .efficiency import ClipEfficiency
from .matrix_noise import MatrixNoise
from .recommendation import Recommendation, Verdict

HEADINGS = (
    "matrix", "shape", "R-hat, k = 1", "raw R-hat", "tail: raw, std", "fit: raw, std", "gain: raw, std",
    "spiked: raw, std", "noise", "advice", "sure",
)  # fmt: skip
NARROW = ("matrix", "spiked: raw, std", "noise", "advice", "sure")  # the columns that fit into 100 characters


def cells(found: MatrixNoise) -> tuple[str, ...]:
    """Return the line of one matrix, a cell for each of `HEADINGS`; std: rows and columns divided by their scales."""
    standardized = found.standardized
    spikes = f"{len(found.spikes)}, {len(standardized.spikes)} of {found.samples}" if standardized else ""
    return (
        found.name,
        f"{found.shape[0]} x {found.shape[1]}",
        _ratio(standardized.localization if standardized else None, band=True),
        _ratio(found.localization, band=False),
        f"{_tail(found.tail)}, {_tail(standardized.tail)}" if standardized else "",
        f"{_heavy_part(found.fit)}, {_heavy_part(standardized.fit)}" if standardized else "",
        f"{_gain(found.gain)}, {_gain(standardized.gain)}" if standardized else "",
        spikes,
        found.recommendation.structure or "",
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
    """Return the index of a power law, none where the tail is not one, or undecided."""
    if tail is None:
        return "-"
    words = {TailVerdict.POWER_LAW: f"{tail.index:.2g}", TailVerdict.NOT_POWER_LAW: "none"}
    return words.get(tail.verdict, tail.verdict)


def _heavy_part(fitted: Fit | None) -> str:
    """Return alpha gamma of the fitted noise model, in units of the entries' scale; none without a heavy part."""
    if fitted is None:
        return "-"
    return f"{fitted.alpha_gamma.value:.2g}" if fitted.contaminated else "none"


def _gain(found: ClipEfficiency | None) -> str:
    return "-" if found is None else f"{found.factor:.3g}"


def _advice(advice: Recommendation) -> str:
    words = f"none: {advice.verdict}" if advice.clip is None else f"{advice.clip}, {advice.stage}"
    return words if advice.verdict != Verdict.RARE_SPIKES else f"just in case {words}"
