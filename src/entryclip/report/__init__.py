"""One self-contained page for a folder of results."""

import base64
from pathlib import Path
from typing import Any

import jinja2

from .. import experiments
from ..experiments.provenance import config_hash
from ..experiments.store import load_record
from ..files import write_text


def write_page(results: Path) -> Path:
    """Write `report.html` into `results`: what was run, the claims and the figures of every experiment found there.

    The page loads nothing from anywhere; everything in it is escaped.
    """
    sections = [
        _section(results / name, name) for name in experiments.NAMES if (results / name / "record.json").exists()
    ]
    if not sections:
        raise FileNotFoundError(f"no results in {results}: run entryclip reproduce all --quick --out {results}")
    missing = [name for name in experiments.NAMES if not (results / name / "record.json").exists()]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    path = results / "report.html"
    write_text(path, environment.get_template("page.html.j2").render(sections=sections, missing=missing))
    return path


def _section(folder: Path, name: str) -> dict[str, Any]:
    module = experiments.find(name)
    figures = [
        {"source": _data_uri(folder / f"{figure}.svg"), "name": figure, "caption": caption}
        for figure, caption in module.CAPTIONS.items()
        if (folder / f"{figure}.svg").exists()
    ]
    record = load_record(folder)
    full, quick = config_hash(module.Config()), config_hash(module.Config.quick())
    flag = " --quick" if record["config_hash"] == quick != full else ""
    return {"title": module.TITLE, "name": name, "flag": flag, "record": record, "figures": figures}


def _data_uri(path: Path) -> str:
    """An image inside the page: as an <img> it can run no script and its ids meet no other figure's."""
    return "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode()
