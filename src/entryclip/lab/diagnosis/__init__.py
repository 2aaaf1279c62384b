"""The noise of a user's own model on disk: the rows, figure and tables that `entryclip diagnose` leaves."""

import dataclasses
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...diagnostics import Report
from ...diagnostics.probe.recommendation import Recommendation
from ...diagnostics.probe.standardized import DetectedSpike
from ...diagnostics.probe.text_table import HEADINGS, cells
from ..engine.provenance import Provenance, config_hash
from ..engine.store import Record, save_record, save_rows
from ..engine.study import Row
from .figures import figures

FOLDER = "diagnoses"  # in the folder of all results
_SPIKES = 100  # in the page's table; all of them are in the rows
_NUMBERS = ("matrix", "sigma", "alpha_gamma", "scale", "balance", "premise", "noise_scale", "quantile", "threshold")
_KINDS = ("raw", "standardised")
_SIDES = (  # a number of the noise as it is, and with the scales of rows and columns divided out
    ("tail", "tail", "standardized_tail"),
    ("tail index", "index", "standardized_index"),
    ("fit: alpha gamma in scales", "alpha_gamma_in_scales", "standardized_alpha_gamma"),
    ("fit: deviance", "deviance", "standardized_deviance"),
    ("gain of the best clip", "raw_gain", "standardized_gain"),
    ("share of spiked samples", "spiked", "standardized_spiked"),
)


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
    found = {
        "What to do": [dict(zip(HEADINGS, cells(each), strict=True)) for each in report.matrices],
        "Why": [{"matrix": each.name, "why": _why(each.recommendation)} for each in report.matrices],
        "As it is, and with the scales of rows and columns divided out (standardised)": _side_by_side(rows),
        "R-hat along the k-th direction of the gradient, against noise with these scales": _ratios(
            rows, "standardized_"
        ),
        "The same against noise of equal scales": _ratios(rows, ""),
        "Entries that stand out from their rows and columns: they carry more than half of sigma_1 of a sample's "
        "standardised noise (size in scales of row and column)": _spikes(
            (each.name, each.standardized.spikes if each.standardized else ()) for each in report.matrices
        ),
        "Entries that carry more than half of sigma_1 of a sample's noise as it is, which may be where a large row "
        "crosses a large column (size in scales of the matrix)": _spikes(
            (each.name, each.spikes) for each in report.matrices
        ),
        "The noise in numbers, and the clip (docs/probe.md says what they are)": [
            {key: row[key] for key in (*_NUMBERS, "theory", "gain")} for row in rows
        ],
        "Not looked at": [{"matrix": name, "why": why} for name, why in report.left_out.items()],
    }
    return {caption: each for caption, each in found.items() if each}


def _spikes(found: Iterable[tuple[str, Sequence[DetectedSpike]]]) -> list[Row]:
    """A line for each of the first spikes, from the names of matrices and the spikes of each."""
    return [{"matrix": name, **spike._asdict()} for name, spikes in found for spike in spikes][:_SPIKES]


def _why(advice: Recommendation) -> str:
    """Return what the noise is, and the reason of the advice."""
    return advice.reason if advice.structure is None else f"{advice.structure.sentence}; {advice.reason}"


def _side_by_side(rows: Sequence[Row]) -> list[Row]:
    """The numbers that scales of rows and columns change, raw and standardised; none for rows of earlier versions."""
    found = []
    for row in rows:
        if row.get("log_rest") is not None and all(key in row for _, *keys in _SIDES for key in keys):
            sides = {
                f"{name}, {kind}": row[key] for name, *keys in _SIDES for kind, key in zip(_KINDS, keys, strict=True)
            }
            found.append({"matrix": row["matrix"], **_spread(row), **sides})
    return found


def _spread(row: Row) -> Row:
    """The standard deviations of the log-scales of rows and columns: of their means over the samples, and in each."""
    found = {}
    for side in ("rows", "columns"):
        found[f"SD of log scale, {side}"] = math.sqrt(row[f"log_{side}"])
        found[f"in single samples, {side}"] = math.sqrt(max(row[f"log_{side}_in_samples"], 0.0))
    return found


def _ratios(rows: Sequence[Row], prefix: str) -> list[Row]:
    """The medians of R-hat over the samples, along each direction of the gradient."""
    return [
        {"matrix": row["matrix"], **{f"k = {k}": value for k, value in enumerate(row[f"{prefix}r_hat"], 1)}}
        for row in rows
        if row.get(f"{prefix}r_hat")
    ]
