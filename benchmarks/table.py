"""Write the tables of the README and docs from the rows under results/.

A table stands between `<!-- name -->` and `<!-- /name -->`; `python -m benchmarks.table` renews all of them.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from entryclip.lab.engine.files import write_text
from entryclip.lab.engine.store import load_rows
from entryclip.lab.engine.study import Claim
from entryclip.lab.paper.dose_response import STUDY as DOSE_RESPONSE
from entryclip.lab.paper.holm import holm
from entryclip.lab.paper.intervals import paired_p
from entryclip.lab.paper.no_harm import STUDY as NO_HARM
from entryclip.lab.paper.pretraining.claims import claims
from entryclip.lab.paper.pretraining.savings import curves, differences
from entryclip.lab.paper.pretraining.tables import against, reported, tuned
from entryclip.lab.paper.regression.results import markdown as regression_table
from entryclip.lab.paper.regression.results import subspace_markdown
from entryclip.lab.paper.scales import STUDY as SCALES
from entryclip.lab.paper.scales.tables import by_layer
from entryclip.lab.paper.spectral_control.claims import markdown_table as control_table
from entryclip.lab.paper.spike import STUDY as SPIKE
from entryclip.lab.paper.untuned.claims import STAGE_NAMES, comparisons
from entryclip.lab.paper.untuned.study import UntunedRun

from .answers import answers
from .does_it_help import listed_answers, most_important
from .grids import band_lines, grid_lines
from .trends import point_lines, points, slope_lines

ROOT = Path(__file__).parent.parent
CONTROLS = ("muon-smooth-rate", "adamw-decay", "adamw-again", "adamw-smooth-again")
PAGES = (
    "README.md",
    "docs/auto.md",
    "docs/benchmarks.md",
    "docs/diagnostics.md",
    "docs/does-it-help.md",
    "docs/pretraining.md",
    "docs/regression.md",
    "docs/scales.md",
)
SHORT_ALPHAS = ("0", "0.01", "0.1", "0.5")  # the columns of the README's table of the regression study


def benchmark_table(rows: list[dict[str, Any]]) -> str:
    """Return a line per benchmark: what was compared, the ratio, its limit, and the times behind it."""
    lines = ["| what | ratio | limit | times |", "|---|---|---|---|"]
    for row in rows:
        sign = "at least" if row["at_least"] else "at most"
        limit = "-" if row["limit"] is None else f"{sign} {row['limit']:g}"
        kept = "" if row["kept"] else " **not kept**"
        name = row["name"].replace("|", r"\|")
        lines.append(f"| {name} | {row['ratio']:.2g}{kept} | {limit} | {row['detail']} |")
    return "\n".join(lines)


def listed(lines: Sequence[dict[str, Any]]) -> str:
    """Return a table with a line per dictionary and a dash for None."""
    cells = [["-" if each is None else str(each) for each in line.values()] for line in lines]
    return "\n".join(f"| {' | '.join(each)} |" for each in [list(lines[0]), ["---"] * len(lines[0]), *cells])


def controls(results: Path) -> list[dict[str, Any]]:
    """Compare the runs made after the pretraining study with those of the study."""
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
        ("AdamW, smooth, RMS kept", "AdamW, smooth shrinkage", found["post-smooth"], found["post-smooth-rms"]),
    ]
    apart = [differences(base, method) for _, _, base, method in pairs]
    chances = holm([paired_p(each) for each in apart])
    return [
        {
            "method": name,
            "baseline": other,
            "seeds": len(each),
            **against(base, method),
            f"p, Holm over {len(pairs)}": f"{chance:.2g}",
        }
        for (name, other, base, method), each, chance in zip(pairs, apart, chances, strict=True)
    ]


def study(results: Path) -> list[dict[str, Any]]:
    """Load the rows of the pretraining study."""
    return load_rows(results / "pretraining-small" / "pretraining")


def untuned_table(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """List the final loss of `auto()` over the better of the paper's tuned clips, by problem and share of outliers."""
    found = comparisons(UntunedRun.from_rows(rows))
    lines = []
    for d, stage in sorted({(each.d, each.stage) for each in found}):
        here = [each for each in found if (each.d, each.stage) == (d, stage)]
        for rates in ("18 learning rates", "the paper's 6"):
            ratios = {
                f"{each.alpha:g}": f"{(each.auto if rates[0] == '1' else each.auto_coarse) / each.paper:.2f}"
                for each in here
            }
            lines.append({"problem": f"{STAGE_NAMES[stage]}, d = {d}", "auto() with": rates, **ratios})
    return lines


def dose_tables(rows: Sequence[Any]) -> str:
    """List the mean final losses by dose, a table for each optimizer and corruption."""
    found = DOSE_RESPONSE.tables(rows)
    return "\n\n".join(f"{caption.partition(':')[0]}:\n\n{listed(lines)}" for caption, lines in found.items())


def scale_rows(results: Path) -> list[dict[str, Any]]:
    """Load the rows of the study of scales that docs/scales.md quotes."""
    return load_rows(results / "scales")


def _judged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return _listed_claims(claims(rows))


def _listed_claims(found: Sequence[Claim]) -> list[dict[str, Any]]:
    return [{**asdict(claim), "holds": "yes" if claim.holds else "no"} for claim in found]


def columns(table: str, wanted: Sequence[str]) -> str:
    """Return a table with its first column and those with the wanted headings.

    >>> columns("| a | 0 | 1 |\\n|---|---|---|\\n| b | 2 | 3 |", ["1"])
    '| a | 1 |\\n|---|---|\\n| b | 3 |'
    """
    head, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    chosen = [0, *(head.index(each) for each in wanted)]
    kept = [f"| {' | '.join(line[i] for i in chosen)} |" for line in (head, *lines)]
    return "\n".join([kept[0], "|---" * len(chosen) + "|", *kept[1:]])


TABLES: dict[str, Callable[[Path], str]] = {
    "benchmarks": lambda results: benchmark_table(json.loads((results / "benchmarks.json").read_text())["rows"]),
    "regression": lambda results: regression_table(load_rows(results / "regression")),
    "regression_subspace": lambda results: subspace_markdown(load_rows(results / "regression")),
    "regression_short": lambda results: columns(regression_table(load_rows(results / "regression")), SHORT_ALPHAS),
    "pretraining": lambda results: listed(reported(study(results))),
    "tuning": lambda results: listed(tuned(study(results))),
    "claims": lambda results: listed(_judged(study(results))),
    "claims_short": lambda results: listed(_judged(study(results))[:2]),
    "control": lambda results: control_table(load_rows(results / "spectral-control")),
    "scales_claims": lambda results: listed(_listed_claims(SCALES.claims(scale_rows(results)))),
    "scales_table": lambda results: listed(by_layer(scale_rows(results))),
    "controls": lambda results: listed(controls(results)),
    "does_it_help": lambda results: listed(listed_answers(answers(results))),
    "does_it_help_short": lambda results: listed(listed_answers(most_important(answers(results)))),
    "rate_grid_adamw": lambda results: listed(grid_lines(load_rows(results / "rate-grid-adamw" / "rate-grid"))),
    "rate_grid_muon": lambda results: listed(grid_lines(load_rows(results / "rate-grid-muon" / "rate-grid"))),
    "rate_grid_gpt2": lambda results: listed(grid_lines(load_rows(results / "rate-grid-gpt2" / "rate-grid"))),
    "rate_grid_gpt2_bands": lambda results: listed(band_lines(load_rows(results / "rate-grid-gpt2" / "rate-grid"))),
    "rate_grid_finetuning": lambda results: listed(
        grid_lines(load_rows(results / "rate-grid-finetuning" / "rate-grid"))
    ),
    "trends": lambda results: listed(point_lines(points(results))),
    "trends_slopes": lambda results: listed(slope_lines(points(results))),
    "spike": lambda results: listed(
        [line for table in SPIKE.tables(load_rows(results / "spike")).values() for line in table]
    ),
    "dose_response": lambda results: dose_tables(load_rows(results / "dose-response")),
    "dose_claims": lambda results: listed(_listed_claims(DOSE_RESPONSE.claims(load_rows(results / "dose-response")))),
    "no_harm": lambda results: listed(
        [line for table in NO_HARM.tables(load_rows(results / "no-harm")).values() for line in table]
    ),
    "untuned": lambda results: listed(untuned_table(load_rows(results / "untuned"))),
}


def renewed(text: str, results: Path) -> str:
    """Return `text` with every table between its marks made anew."""
    for name, make in TABLES.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if start in text:
            head, rest = text.split(start)
            _, tail = rest.split(end)
            text = f"{head}{start}\n{make(results)}\n{end}{tail}"
    return text


def renew(results: Path = ROOT / "results") -> None:
    """Rewrite the tables of all pages."""
    for page in PAGES:
        path = ROOT / page
        write_text(path, renewed(path.read_text(), results))


if __name__ == "__main__":
    renew()
