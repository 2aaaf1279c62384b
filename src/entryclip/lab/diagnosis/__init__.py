"""The noise of a user's own model on disk: the rows, figure and tables that `entryclip diagnose` leaves."""

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...diagnostics import Report
from ...diagnostics.probe.text_table import HEADINGS, cells
from ..engine.provenance import Provenance, config_hash
from ..engine.store import Record, save_record, save_rows
from ..engine.study import Row
from .figures import figures

FOLDER = "diagnoses"  # in the folder of all results
_SPIKES = 100  # in the page's table; all of them are in the rows
_NUMBERS = ("matrix", "sigma", "alpha_gamma", "scale", "balance", "premise", "noise_scale", "quantile", "threshold")


@dataclass(frozen=True)
class DiagnosisConfig:
    """The model that was probed, and the options of the probe."""

    source: str  # file.py:function, or the folder of a checkpoint
    where: tuple[str, ...] = ()  # patterns of the names of matrices; none: all hidden ones
    directions: int = 8
    samples: int = 64


def save_diagnosis(report: Report, config: DiagnosisConfig, folder: Path, seconds: float) -> None:
    """Write the rows, the figure and the record of a probe's report."""
    from ..engine.figures import save

    rows = report.rows()
    save_rows(folder, rows)
    for name, figure in figures(rows).items():
        save(figure, folder, name)
    record = Record(
        folder.name,
        dataclasses.asdict(config),
        config_hash("diagnosis", config),
        Provenance.now([sys.modules[__name__]]),
        round(seconds, 3),
        tables=tables(report, rows),
        summary=tuple(report.summary()),
    )
    save_record(folder, record)


def tables(report: Report, rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The page's tables by caption: advice, R-hat along each direction, the largest entries, the noise in numbers."""
    ratios = [
        {"matrix": row["matrix"], **{f"k = {k}": value for k, value in enumerate(row["r_hat"], 1)}}
        for row in rows
        if row["r_hat"]
    ]
    spikes = [{"matrix": each.name, **spike._asdict()} for each in report.matrices for spike in each.spikes]
    found = {
        "What to do": [dict(zip(HEADINGS, cells(each), strict=True)) for each in report.matrices],
        "Why": [{"matrix": each.name, "why": each.recommendation.reason} for each in report.matrices],
        "R-hat along the k-th direction of the gradient, the median over the samples": ratios,
        "Entries that carry more than half of sigma_1 of a sample's noise (size in scales)": spikes[:_SPIKES],
        "The noise in numbers, and the clip (docs/probe.md says what they are)": [
            {key: row[key] for key in (*_NUMBERS, "theory", "gain")} for row in rows
        ],
        "Not looked at": [{"matrix": name, "why": why} for name, why in report.left_out.items()],
    }
    return {caption: each for caption, each in found.items() if each}
