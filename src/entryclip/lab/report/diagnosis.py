"""The probe's findings on disk: rows, a figure, tables for the report page. `entryclip diagnose` makes them.

Not one of the paper's experiments: what is looked at is the user's own model.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...diagnostics import Report
from ...diagnostics.probe.text_table import HEADINGS, cells
from ..engine.provenance import provenance
from ..engine.store import save_record, save_rows

FOLDER = "diagnoses"  # in the folder of all results
CAPTIONS = {
    "noise": "(a) R-hat of the gradient noise along the first singular direction of the gradient, the median over the "
    "samples, on the band (95 %) of Gaussian noise: to the right single entries stand out, to the left the noise "
    "is aligned with the gradient. Hollow: with a plain mean in place of medians of means, which one spike captures. "
    "(b) The same along the directions k = 2, 3, ...: noise aligned with the first one is far right there. (c) The "
    "share of samples in which one entry carries more than half of sigma_1 of the noise.",
}
_SPIKES = 100  # in the report; all of them are in the rows


@dataclass(frozen=True)
class Config:
    """What was asked for."""

    source: str  # file.py:make
    where: tuple[str, ...] = ()
    directions: int = 8
    samples: int = 64


def save_diagnosis(report: Report, config: Config, folder: Path, seconds: float) -> None:
    """Rows, figure and record of a report."""
    from ..engine.figures import save

    rows = report.rows()
    save_rows(folder, rows)
    for name, figure in plot(rows).items():
        save(figure, folder, name)
    more = {"claims": [], "tables": tables(report, rows), "summary": report.summary(), "seconds": round(seconds, 3)}
    save_record(folder, config, {**provenance(sys.modules[__name__]), **more})


def tables(report: Report, rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """For the page: advice, R-hat along each direction, the entries that did it, and the noise in numbers."""
    advice = [dict(zip(HEADINGS, cells(each), strict=True)) for each in report.matrices]
    reasons = [{"matrix": each.name, "why": each.recommendation.reason} for each in report.matrices]
    ratios = [
        {"matrix": row["matrix"], **{f"k = {k}": value for k, value in enumerate(row["r_hat"], 1)}}
        for row in rows
        if row["r_hat"]
    ]
    spikes = [{"matrix": each.name, **spike._asdict()} for each in report.matrices for spike in each.spikes]
    shown = ("matrix", "sigma", "alpha_gamma", "scale", "balance", "premise", "noise_scale", "quantile", "threshold")
    numbers = [{key: row[key] for key in (*shown, "theory", "gain")} for row in rows]
    left_out = [{"matrix": name, "why": why} for name, why in report.left_out.items()]
    found = {
        "What to do": advice,
        "Why": reasons,
        "R-hat along the k-th direction of the gradient, the median over the samples": ratios,
        "Entries that carry more than half of sigma_1 of a sample's noise (size in scales)": spikes[:_SPIKES],
        "The noise in numbers, and the clip (docs/probe.md says what they are)": numbers,
        "Not looked at": left_out,
    }
    return {caption: each for caption, each in found.items() if each}


def plot(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """A line for each matrix."""
    from ..engine.figures import panels

    rows = [row for row in rows if row["r_hat"]]
    if not rows:
        return {}
    figure, (first, others, bars) = panels(3, width=3.6, height=1.6 + 0.2 * len(rows))
    place = range(len(rows))
    for y, row in zip(place, rows, strict=True):
        for axis in (first, others):
            axis.plot([row["low"][0], row["high"][0]], [y, y], color="#cccccc", lw=5, solid_capstyle="butt", zorder=1)
        colour = "#c8352b" if row["verdict"] == "spikes" else "#1f5fa8"
        first.plot(row["r_hat"][0], y, "o", ms=5, color=colour, zorder=3)
        if row["plain_r_hat"]:
            first.plot(row["plain_r_hat"][0], y, "o", ms=6, mfc="none", mec="#555555", zorder=2)
        others.plot(row["r_hat"][1:], [y] * (len(row["r_hat"]) - 1), "|", ms=8, color=colour, zorder=3)
        bars.barh(y, row["spiked"], color=colour)
        bars.text(row["spiked"] + 0.02, y, f"{len(row['spikes'])} of {row['samples']}", va="center", fontsize=8)
    for axis, title in ((first, "(a) R-hat, k = 1"), (others, "(b) R-hat, k > 1")):
        axis.axvline(1, color="#222222", lw=0.8, ls=":")
        axis.set(xscale="log", title=title, xlabel="R-hat")
    bars.set(xlim=(0, 1.25), xticks=[0, 0.5, 1], title="(c) spiked", xlabel="share of the samples")
    for axis in (first, others, bars):
        axis.set_ylim(len(rows) - 0.4, -0.6)
        axis.set_yticks(list(place), [row["matrix"] for row in rows] if axis is first else [""] * len(rows))
        axis.grid(axis="y", visible=False)
    first.tick_params(axis="y", labelsize=8)
    return {"noise": figure}
