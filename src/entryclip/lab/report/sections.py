"""What the page shows: a section for each experiment and sweep in a folder, and what is missing there."""

import dataclasses
import itertools
import json
import shlex
from pathlib import Path
from typing import Any

from markupsafe import Markup

from .. import paper as experiments
from ..engine.files import read_sealed
from ..engine.store import load_record, load_rows
from . import diagnosis
from .svg import inline

SHOWN = 200  # rows of a table; all of them are in rows.jsonl

Section = dict[str, Any]


def all_sections(results: Path) -> list[Section]:
    """Of the experiments in their order, then of the sweeps, then of models that were diagnosed."""
    found = [_experiment(results, name) for name in experiments.NAMES if _is_there(results / name)]
    sweeps = sorted((results / "sweeps").glob("*/record.json"))
    diagnoses = sorted((results / diagnosis.FOLDER).glob("*/record.json"))
    found += [_sweep(results, path.parent) for path in sweeps]
    return found + [_diagnosis(results, path.parent) for path in diagnoses]


def all_missing(results: Path) -> list[dict[str, Any]]:
    """The experiments that are not there, how far they are, and the command that makes them."""
    return [_missing(results, name) for name in experiments.NAMES if not _is_there(results / name)]


def _is_there(folder: Path) -> bool:
    return (folder / "record.json").exists()


def _missing(results: Path, name: str) -> dict[str, Any]:
    units = results / name / "units"
    failures = [_reason(path) for path in sorted(units.glob("*.failed"))]
    command = _command("reproduce", name, out=results)
    return {"command": command, "finished": len(list(units.glob("*.json"))), "failures": failures}


def _reason(path: Path) -> str:
    try:
        return str(read_sealed(path)["reason"])
    except (ValueError, KeyError) as error:
        return str(error)


def _experiment(results: Path, name: str) -> Section:
    module, folder = experiments.find(name), results / name
    record = load_record(folder)
    figures = _figures(results, folder, module.CAPTIONS)
    tables = [_table(caption, rows, len(rows)) for caption, rows in (record.get("tables") or {}).items()]
    command = _command("reproduce", name, *_settings(module.Config, record["config"]), out=results)
    return _section(results, folder, record, title=module.TITLE, command=command, figures=figures, tables=tables)


def _settings(kind: Any, config: dict[str, Any]) -> list[str]:
    """The options that ask for this config: --quick or not, and what differs from that."""
    found = []
    for words, standard in (([], kind()), (["--quick"], kind.quick())):
        usual = json.loads(json.dumps(dataclasses.asdict(standard)))  # tuples as lists
        changed = [f"{key}={_joined(value)}" for key, value in config.items() if usual.get(key, value) != value]
        found.append([*words, *(["--set", *changed] if changed else [])])
    return min(found, key=len)


def _sweep(results: Path, folder: Path) -> Section:
    record = load_record(folder)
    over = [f"{field}={','.join(map(_joined, values))}" for field, values in (record.get("over") or {}).items()]
    name = folder.name.rpartition("-")[0]
    command = _command("sweep", name, "--over", *over, out=results)
    title = f"Sweep of {name} over {' '.join(over)}"
    return _section(results, folder, record, title=title, command=command, figures=[], tables=[])


def _diagnosis(results: Path, folder: Path) -> Section:
    record = load_record(folder)
    config, standard = record["config"], dataclasses.asdict(diagnosis.Config(""))
    options = [f"--{key}" for key in ("directions", "samples") if config[key] != standard[key]]
    values = [str(config[option[2:]]) for option in options]
    words = [word for pattern in config["where"] for word in ("--where", pattern)]
    words += [word for pair in zip(options, values, strict=True) for word in pair]
    command = _command("diagnose", config["source"], *words, out=results)
    title = f"Gradient noise of {config['source']}: {record['summary'][0]}"
    tables = [_table(caption, rows, len(rows)) for caption, rows in (record.get("tables") or {}).items()]
    figures = _figures(results, folder, diagnosis.CAPTIONS)
    return _section(results, folder, record, title=title, command=command, figures=figures, tables=tables)


def _section(results: Path, folder: Path, record: dict[str, Any], **more: Any) -> Section:
    rows = folder / "rows.jsonl"
    link, count, preview = rows.relative_to(results).as_posix(), 0, None
    if rows.exists():
        with rows.open("rb") as lines:
            count = sum(1 for _ in lines)
        first = load_rows(folder, SHOWN)
        preview = _table("", first, count) if first and not more["tables"] else None
    record.setdefault("failed", [])
    found = {"name": folder.name, "anchor": folder.name, "record": record, "rows": link, "count": count}
    return {**found, "preview": preview, **more}


def _figures(results: Path, folder: Path, captions: dict[str, str]) -> list[dict[str, Any]]:
    paths = {folder / f"{name}.svg": caption for name, caption in captions.items()}
    return [_figure(results, path, caption) for path, caption in paths.items() if path.exists()]


def _figure(results: Path, path: Path, caption: str) -> dict[str, Any]:
    markup, colours = inline(path, f"{path.parent.name}-{path.stem}")
    png = path.with_suffix(".png").relative_to(results).as_posix()
    return {"markup": Markup(markup), "colours": colours, "caption": caption, "png": png}


def _table(caption: str, rows: list[dict[str, Any]], count: int) -> dict[str, Any]:
    """With the columns of all rows; a long one is cut, and says so."""
    columns = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    shown = [[_cell(row.get(column)) for column in columns] for row in rows[:SHOWN]]
    cut = f"The first {len(shown)} of {count:,} rows. " if count > len(shown) else ""
    return {"caption": cut + caption, "columns": columns, "rows": shown}


def _cell(value: Any) -> dict[str, Any]:
    """How it looks, and what it sorts by."""
    if isinstance(value, list):
        value = f"{len(value)} values"
    if value is None:
        return {"text": "\N{EN DASH}", "value": "", "number": False}
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"text": f"{value:.4g}" if isinstance(value, float) else str(value), "value": str(value), "number": number}


def _joined(value: Any) -> str:
    """As it is typed: several by colons."""
    return "none" if value is None else ":".join(map(str, value)) if isinstance(value, list) else str(value)


def _command(*words: str, out: Path) -> str:
    """As it is typed; the folder only where it is not the usual one."""
    return shlex.join(["entryclip", *words, *([] if out == Path("out") else ["--out", str(out)])])
