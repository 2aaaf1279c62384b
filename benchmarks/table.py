"""The tables of the README and docs, made from the rows under results/: `python -m benchmarks.table` renews them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from entryclip.lab.engine.files import write_text
from entryclip.lab.engine.store import load_rows
from entryclip.lab.paper.pretraining.claims import claims
from entryclip.lab.paper.pretraining.savings import curves
from entryclip.lab.paper.pretraining.tables import against, reported, tuned
from entryclip.lab.paper.regression.results import markdown as regression_table
from entryclip.lab.paper.spectral_control.claims import markdown_table as control_table

ROOT = Path(__file__).parent.parent
CONTROLS = ("muon-smooth-rate", "adamw-decay", "adamw-again", "adamw-smooth-again")
PAGES = ("README.md", "docs/pretraining.md", "docs/diagnostics.md")


def benchmark_table(rows: list[dict[str, Any]]) -> str:
    """One line per row: what was compared, the ratio, what we hold ourselves to, and the times behind it."""
    lines = ["| what | ratio | limit | times |", "|---|---|---|---|"]
    for row in rows:
        sign = "at least" if row["at_least"] else "at most"
        kept = "" if row["kept"] else " **not kept**"
        name = row["name"].replace("|", r"\|")
        lines.append(f"| {name} | {row['ratio']:.2g}{kept} | {sign} {row['limit']:g} | {row['detail']} |")
    return "\n".join(lines)


def listed(lines: Sequence[dict[str, Any]]) -> str:
    """A line for each; what it does not have is a dash."""
    cells = [["-" if each is None else str(each) for each in line.values()] for line in lines]
    return "\n".join(f"| {' | '.join(each)} |" for each in [list(lines[0]), ["---"] * len(lines[0]), *cells])


def controls(results: Path) -> list[dict[str, Any]]:
    """The runs made after the pretraining study, beside those of the study that they explain."""
    rows = {name: load_rows(results / "pretraining-controls" / name / "pretraining") for name in CONTROLS}
    found, ten = curves(study(results)), curves([*study(results), *rows["adamw-again"], *rows["adamw-smooth-again"]])
    muon, decay, again, smooth = (next(iter(curves(each).values())) for each in rows.values())
    pairs = [
        ("Muon, smooth shrinkage at 0.016", "Muon at 0.016", found["muon"], muon),
        ("Muon, smooth shrinkage at 0.016", "the same at 0.032", found["pre-smooth"], muon),
        ("SPECTRA", "AdamW", found["adamw"], found["spectra"]),
        ("AdamW with decay 0.2", "AdamW with decay 0.1", found["adamw"], decay),
        ("AdamW, smooth shrinkage", "AdamW with decay 0.2", decay, found["post-smooth"]),
        ("AdamW, smooth shrinkage, five more seeds", "AdamW", again, smooth),
        ("AdamW, smooth shrinkage, all ten", "AdamW", ten["adamw"], ten["post-smooth"]),
    ]
    return [{"method": name, "baseline": other, **against(base, method)} for name, other, base, method in pairs]


def study(results: Path) -> list[dict[str, Any]]:
    """The rows of the pretraining study."""
    return load_rows(results / "pretraining-small" / "pretraining")


def _judged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"claim": each.claim, "measured": each.measured, "holds": "yes" if each.holds else "no"}
        for each in claims(rows)
    ]


TABLES: dict[str, Callable[[Path], str]] = {
    "benchmarks": lambda results: benchmark_table(json.loads((results / "benchmarks.json").read_text())["rows"]),
    "regression": lambda results: regression_table(load_rows(results / "regression")),
    "pretraining": lambda results: listed(reported(study(results))),
    "tuning": lambda results: listed(tuned(study(results))),
    "claims": lambda results: listed(_judged(study(results))),
    "control": lambda results: control_table(load_rows(results / "spectral-control")),
    "controls": lambda results: listed(controls(results)),
}


def renewed(text: str, results: Path) -> str:
    """`text` with what stands between the marks of each table replaced by the table."""
    for name, make in TABLES.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if start in text:
            head, rest = text.split(start)
            _, tail = rest.split(end)
            text = f"{head}{start}\n{make(results)}\n{end}{tail}"
    return text


def renew(results: Path = ROOT / "results") -> None:
    for page in PAGES:
        path = ROOT / page
        write_text(path, renewed(path.read_text(), results))


if __name__ == "__main__":
    renew()
