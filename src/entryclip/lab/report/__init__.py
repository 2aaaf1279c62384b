"""One self-contained page for a folder of results."""

import base64
import hashlib
import shlex
from pathlib import Path
from typing import NamedTuple

import jinja2
from markupsafe import Markup

from ..engine.files import write_text
from ..engine.printable import printable
from ..engine.study import Claim
from .sections import PageFigure, Section, all_missing, all_sections
from .svg import in_the_dark, variable
from .terms import TERMS
from .training_runs_section import show_runs

HERE = Path(__file__).parent


class Page(NamedTuple):
    """The page that was written, and a line for each folder of results that it could not show."""

    path: Path
    damaged: list[str]


def write_page(results: Path) -> Page:
    """Write `report.html` into `results`: what was run, the claims, figures and tables of everything found there.

    The page loads nothing from anywhere, and no script but its own may run in it; everything in it is escaped.
    Results that cannot be read are named on it, and do not keep the others from it.
    """
    if results.exists() and not results.is_dir():
        raise NotADirectoryError(f"{results} is a file: choose the folder of the results")
    sections, damaged = all_sections(results)
    runs, damaged_runs = show_runs(results)
    damaged += damaged_runs
    if not (sections or runs or damaged):
        command = f"entryclip reproduce all --quick --out {shlex.quote(str(results))}"
        raise FileNotFoundError(f"no results in {results}: run {command}")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, undefined=jinja2.StrictUndefined
    )
    script = (HERE / "page.js").read_text()
    figures = [figure for section in sections for figure in section.figures] + (runs.figures if runs else [])
    text = environment.get_template("page.html.j2").render(
        sections=sections,
        damaged=[printable(line) for line in damaged],
        missing=all_missing(results) if sections or not runs else [],  # of training runs alone no study is missing
        claims=_claims(sections),
        runs=runs,
        terms=TERMS,
        style=Markup((HERE / "page.css").read_text() + _palette(figures)),
        script=Markup(script),
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    write_text(results / "report.html", text)
    return Page(results / "report.html", damaged)


def _claims(sections: list[Section]) -> dict[str, list[tuple[Section, Claim]]]:
    """All claims with their sections, those of full studies, and those of quick versions."""
    every = [(section, claim) for section in sections for claim in section.record.claims]
    of = {quick: [(section, claim) for section, claim in every if section.quick == quick] for quick in (False, True)}
    return {"all": every, "full": of[False], "quick": of[True]}


def _palette(figures: list[PageFigure]) -> str:
    """CSS that gives every colour of the figures its value on a light and on a dark page."""
    colours = sorted({colour for figure in figures for colour in figure.colours})
    light = "".join(f"{variable(colour)}:{colour};" for colour in colours)
    dark = "".join(f"{variable(colour)}:{in_the_dark(colour)};" for colour in colours)
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"
