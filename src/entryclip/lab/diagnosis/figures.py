"""The figure of a diagnosis: R-hat of every matrix, and how often one entry carries the noise."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..engine.study import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTIONS = {
    "noise": "(a) R-hat of the gradient noise along the first singular direction of the gradient, the median over the "
    "samples, on the band (95 %) of Gaussian noise with the same scales of rows and columns: to the right single "
    "entries stand out, to the left the noise is aligned with the gradient. Cross: raw, against Gaussian noise of "
    "equal scales. Hollow: raw, with a plain mean in place of medians of means, which one spike captures. (b) The same "
    "along the directions k = 2, 3, ...: noise aligned with the first one is far right there. (c) The share of samples "
    "in which one entry carries more than half of sigma_1 of the noise with the scales divided out, and with a cross "
    "of the noise as it is. Diagnoses of earlier versions, whose rows have the noise as it is alone, show that.",
}

_RAW = "#555555"  # of the noise as it is


def figures(rows: Sequence[Row]) -> "Mapping[str, Figure]":
    """Draw a line for each matrix that was measured; no figure where there is none."""
    from ..engine.figures import literal, panels

    rows = [row for row in rows if row["r_hat"]]
    if not rows:
        return {}
    figure, axes = panels(3, width=3.6, height=1.6 + 0.2 * len(rows))
    first, others, shares = axes
    for y, row in enumerate(rows):
        _draw_matrix(axes, y, row)
    for axis, title in ((first, "(a) R-hat, k = 1"), (others, "(b) R-hat, k > 1")):
        axis.axvline(1, color="#222222", lw=0.8, ls=":")
        axis.set(xscale="log", title=title, xlabel="R-hat")
    shares.set(xlim=(0, 1.25), xticks=[0, 0.5, 1], title="(c) spiked", xlabel="share of the samples")
    for axis in axes:
        axis.set_ylim(len(rows) - 0.4, -0.6)
        axis.set_yticks(
            range(len(rows)), [literal(row["matrix"]) for row in rows] if axis is first else [""] * len(rows)
        )
        axis.grid(axis="y", visible=False)
    first.tick_params(axis="y", labelsize=8)
    return {"noise": figure}


def _draw_matrix(axes: "Sequence[Axes]", y: int, row: Row) -> None:
    """One matrix at the height `y`: R-hat along the first direction, along the others, and the share of spikes."""
    first, others, shares = axes
    is_whole = row.get("standardized_r_hat") and "standardized_spikes" in row  # rows of earlier versions are not
    own = "standardized_" if is_whole else ""
    for axis in (first, others):
        ends = [row[f"{own}low"][0], row[f"{own}high"][0]]
        axis.plot(ends, [y, y], color="#cccccc", lw=5, solid_capstyle="butt", zorder=1)
    colour = "#c8352b" if row["verdict"] == "spikes" else "#1f5fa8"
    ratios, spiked = row[f"{own}r_hat"], row[f"{own}spiked"]
    first.plot(ratios[0], y, "o", ms=5, color=colour, zorder=3)
    if row["plain_r_hat"]:
        first.plot(row["plain_r_hat"][0], y, "o", ms=6, mfc="none", mec=_RAW, zorder=2)
    others.plot(ratios[1:], [y] * (len(ratios) - 1), "|", ms=8, color=colour, zorder=3)
    shares.barh(y, spiked, color=colour)
    shares.text(
        max(spiked, row["spiked"]) + 0.04, y, f"{len(row[f'{own}spikes'])} of {row['samples']}", va="center", fontsize=8
    )
    if own:
        first.plot(row["r_hat"][0], y, "x", ms=5, color=_RAW, zorder=4)
        shares.plot(row["spiked"], y, "x", ms=5, color=_RAW, zorder=4)
