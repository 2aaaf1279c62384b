"""The page's content: a section for each study, sweep and diagnosis in a folder of results, and what is missing."""

import dataclasses
import hashlib
import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from .. import diagnosis, paper
from ..diagnosis.figures import CAPTIONS as DIAGNOSIS_CAPTIONS
from ..engine.files import JsonObject, read_sealed
from ..engine.grid import typed
from ..engine.schema import BadFile, check, fields, listed, open_regular, require, text, whole
from ..engine.store import Record, load_record, load_rows
from ..engine.study import Study
from .full_results import FullResults, find_full_results
from .svg import inline
from .tables import SHOWN, Table, make_table

_PLAIN = re.compile("[A-Za-z][A-Za-z0-9-]*")
_DIAGNOSIS = fields({"source": text(), "where": listed(text()), "directions": whole(), "samples": whole()})


def _diagnosis_schema(value: Any, field: str) -> None:
    """Accept the config and the summary of a diagnosis, which the page shows in words."""
    config, summary = value
    _DIAGNOSIS(config, "config")
    require(bool(summary), "summary", "a diagnosis in words", summary)


@dataclass(frozen=True)
class PageFigure:
    """A figure inside the page."""

    markup: Markup
    colours: frozenset[str]
    caption: str
    png: str  # a link


@dataclass(frozen=True)
class Section:
    """One study, sweep or diagnosis on the page."""

    name: str
    title: str
    command: str  # that makes it again
    record: Record
    figures: list[PageFigure]
    tables: list[Table]
    preview: Table | None  # the first rows, where there are no tables
    rows: str  # a link
    count: int  # of rows
    quick: bool = False  # whether the rows are of the small version, which decides nothing
    full: FullResults | None = None  # where those of the full version are, if that is known
    full_command: str = ""  # that makes the full version


@dataclass(frozen=True)
class Missing:
    """A study without results: the command that makes them, and how far its units are."""

    command: str
    finished: int
    failures: list[str]


def all_sections(results: Path) -> tuple[list[Section], list[str]]:
    """The sections of the studies in their order, then of the sweeps, then of the models that were diagnosed.

    The second list has a line for each of them whose files cannot be read; it does not keep the others from the page.
    """
    studies = [partial(_study, results, paper.find(name)) for name in paper.NAMES if _is_there(results / name)]
    sweeps = [partial(_sweep, results, each) for each in _folders(results / "sweeps")]
    diagnoses = [partial(_diagnosis, results, each) for each in _folders(results / diagnosis.FOLDER)]
    found: list[Section] = []
    damaged: list[str] = []
    for make in (*studies, *sweeps, *diagnoses):
        try:
            found.append(make())
        except (BadFile, OSError) as error:
            damaged.append(str(error))
    return found, damaged


def _folders(place: Path) -> list[Path]:
    return [path.parent for path in sorted(place.glob("*/record.json"))]


def all_missing(results: Path) -> list[Missing]:
    """The studies that have no results in the folder."""
    return [_missing(results, name) for name in paper.NAMES if not _is_there(results / name)]


def _is_there(folder: Path) -> bool:
    return (folder / "record.json").exists()


def _missing(results: Path, name: str) -> Missing:
    units = results / name / "units"
    failures = [_reason(path) for path in sorted(units.glob("*.failed"))]
    return Missing(_command("reproduce", name, out=results), len(list(units.glob("*.json"))), failures)


def _reason(path: Path) -> str:
    try:
        return str(read_sealed(path).get("reason"))
    except (BadFile, OSError) as error:
        return str(error)


def _study(results: Path, study: Study[Any]) -> Section:
    record = load_record(results / study.name)
    settings = _settings(study, record.config)
    command = _command("reproduce", study.name, *settings, out=results)
    section = _section(results, results / study.name, record, study.title, command, study.captions)
    full_command = shlex.join(["entryclip", "reproduce", study.name, "--out", f"{results}-full"])
    quick = "--quick" in settings
    return dataclasses.replace(
        section, quick=quick, full=find_full_results(study.name, results) if quick else None, full_command=full_command
    )


def _settings(study: Study[Any], config: JsonObject) -> list[str]:
    """The shortest options that ask for this config: --quick or not, and the fields that differ from that."""
    found = []
    for words, standard in (([], study.config()), (["--quick"], study.config.quick())):
        usual = json.loads(json.dumps(dataclasses.asdict(standard)))  # tuples as lists
        changed = [f"{key}={typed(value)}" for key, value in config.items() if usual.get(key, value) != value]
        found.append([*words, *(["--set", *changed] if changed else [])])
    return min(found, key=len)


def _sweep(results: Path, folder: Path) -> Section:
    record = load_record(folder)
    over = [f"{field}={','.join(map(typed, values))}" for field, values in (record.over or {}).items()]
    name = folder.name.rpartition("-")[0]
    command = _command("sweep", name, "--over", *over, out=results)
    return _section(results, folder, record, f"Sweep of {name} over {' '.join(over)}", command, {})


def _diagnosis(results: Path, folder: Path) -> Section:
    record = load_record(folder)
    check([record.config, list(record.summary)], _diagnosis_schema, folder / "record.json", "diagnose the model again")
    config, standard = record.config, dataclasses.asdict(diagnosis.DiagnosisConfig(""))
    words = [word for pattern in config["where"] for word in ("--where", pattern)]
    for key in ("directions", "samples"):
        words += [f"--{key}", str(config[key])] if config[key] != standard[key] else []
    command = _command("diagnose", config["source"], *words, out=results)
    title = f"Gradient noise of {config['source']}: {record.summary[0]}"
    return _section(results, folder, record, title, command, DIAGNOSIS_CAPTIONS)


def _section(
    results: Path, folder: Path, record: Record, title: str, command: str, captions: Mapping[str, str]
) -> Section:
    rows = folder / "rows.jsonl"
    tables = [make_table(caption, lines) for caption, lines in record.tables.items()]
    count, preview = 0, None
    if rows.exists():
        with open_regular(rows) as lines:
            count = sum(1 for _ in lines)
        first = load_rows(folder, SHOWN)
        preview = make_table("", first, count) if first and not tables else None
    figures = page_figures(results, folder, captions)
    return Section(_identifier(folder), title, command, record, figures, tables, preview, _link(results, rows), count)


def page_figures(results: Path, folder: Path, captions: Mapping[str, str]) -> list[PageFigure]:
    """The figures of a folder that have a caption and are there."""
    paths = {folder / f"{name}.svg": caption for name, caption in captions.items()}
    return [_figure(results, path, caption) for path, caption in paths.items() if path.exists()]


def _figure(results: Path, path: Path, caption: str) -> PageFigure:
    markup, colours = inline(path, f"{_identifier(path.parent)}-{path.stem}")
    return PageFigure(Markup(markup), frozenset(colours), caption, _link(results, path.with_suffix(".png")))


def _identifier(folder: Path) -> str:
    """A name for the page's ids and styles: the folder's where it is plain, else one without its characters."""
    if _PLAIN.fullmatch(folder.name):
        return folder.name
    return f"folder-{hashlib.sha256(os.fsencode(folder.name)).hexdigest()[:12]}"


def _link(results: Path, path: Path) -> str:
    return quote(os.fsencode(path.relative_to(results).as_posix()))


def _command(*words: str, out: Path) -> str:
    """A command as it is typed; the folder only where it is not the usual one."""
    return shlex.join(["entryclip", *words, *([] if out == Path("out") else ["--out", str(out)])])
