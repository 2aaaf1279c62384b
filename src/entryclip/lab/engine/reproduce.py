"""Run experiments and leave their rows, figures and records in a folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..paper import find
from .provenance import config_hash, drawing_hash
from .runner import Plan, execute, plan, refusal
from .store import load_record, load_rows, rows_sha256, save_record, save_rows
from .units import Outcome, Unit, outdated, read, split

MADE_BY = ("versions", "python", "machine", "commit", "code", "data")  # the last only where there is some


@dataclass
class Options:
    """How to run."""

    quick: bool = False
    jobs: int | None = None  # processes; one per core
    on_stale: str = "refuse"
    say: Callable[[str], object] = lambda _: None  # takes a line about what is skipped, damaged, ...
    started: Callable[[int, int], object] = lambda finished, total: None
    progress: Callable[[Outcome], object] = lambda _: None
    changes: dict[str, Any] = field(default_factory=dict)  # fields of the config that differ from its defaults


@dataclass(frozen=True)
class Job:
    """One experiment of a run."""

    name: str
    config: Any
    folder: Path
    units: list[Unit]


def reproduce(name: str, results: Path, *, quick: bool = False) -> Path:
    """Run the experiment `name`, at its quick setting or the full one, into `results/name`."""
    if failed := reproduce_all([name], results, Options(quick=quick, jobs=1)):
        raise RuntimeError(f"{name}: {failed[0].reason}")
    return results / name


def reproduce_all(names: Sequence[str], results: Path, options: Options) -> list[Outcome]:
    """Run several experiments, their units side by side, and return the units that failed.

    An experiment whose units are all there gets its rows, figures and record; one with a failed unit keeps what it had.
    """
    jobs = [job for name in names if not _complete(job := _job(name, results, options), options)]
    failed: list[Outcome] = []
    todo = [(job, job.units) for job in jobs]
    while todo:
        failed += _run(todo, options)
        broken = {each.unit.experiment for each in failed}
        todo = [(job, more) for job, _ in todo if job.name not in broken and (more := _following(job))]
    for job in jobs:
        if job.name not in {each.unit.experiment for each in failed}:
            parts = collect(job.units)
            _draw(job, [row for part in parts for row in part["rows"]], made_by(parts))
    return failed


def _run(todo: Sequence[tuple[Job, list[Unit]]], options: Options) -> list[Outcome]:
    """Do the units that are not there yet; returns those that failed."""
    plans = [plan(units, on_stale=options.on_stale) for _, units in todo]
    for (job, _), found in zip(todo, plans, strict=True):
        announce(job.name, found, options.say)
    to_do = [unit for found in plans for unit in found.to_do]
    options.started(sum(len(found.finished) for found in plans), sum(len(units) for _, units in todo))
    return [each for each in execute(to_do, jobs=options.jobs, progress=options.progress) if each.state == "failed"]


def _following(job: Job) -> list[Unit]:
    """The units that the rows so far call for, taken into the job; none when it is complete."""
    if not hasattr(find(job.name), "next_units"):
        return []
    rows = [row for part in collect(job.units) for row in part["rows"]]
    known = {unit.path for unit in job.units}
    more = [unit for unit in split(job.name, job.config, job.folder, rows) if unit.path not in known]
    job.units.extend(more)
    return more


def announce(name: str, found: Plan, say: Callable[[str], object]) -> None:
    """Say what the plan found and skips."""
    for note in found.notes:
        say(f"{name}: {note}")
    if found.finished:
        say(f"{name}: {len(found.finished)} of {len(found.finished) + len(found.to_do)} units are there and skipped")


def collect(units: Sequence[Unit]) -> list[dict[str, Any]]:
    """The files of finished units, all of them."""
    parts = [read(unit) for unit in units]
    for unit, part in zip(units, parts, strict=True):
        if part is None:
            raise OSError(f"{unit.path} is not here: all processes must share the folder {unit.folder}")
    return [part for part in parts if part is not None]


def made_by(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The provenance of finished units together, and their seconds."""
    same = len({(part["code"], tuple(part["versions"].items())) for part in parts}) == 1
    made = {key: parts[-1][key] for key in MADE_BY if key in parts[-1]} | ({} if same else {"code": "mixed"})
    return {**made, "seconds": round(sum(part["seconds"] for part in parts), 3)}


def _job(name: str, results: Path, options: Options) -> Job:
    config = replace(find(name).Config.quick() if options.quick else find(name).Config(), **options.changes)
    return Job(name, config, results / name, split(name, config, results / name))


def _complete(job: Job, options: Options) -> bool:
    """Whether all of it is there, as this config and code would make it again; figures and claims are made new here."""
    module = find(job.name)
    try:
        record = load_record(job.folder)
    except (OSError, ValueError):
        return False
    if record["config_hash"] != config_hash(job.config):
        options.say(f"{job.name}: the rows in {job.folder} are of another config and are replaced; its units are kept")
        return False
    if record.get("rows_sha256") is None or record["rows_sha256"] != rows_sha256(job.folder):
        return False
    if reasons := outdated(module, job.config, record):
        if options.on_stale == "refuse":
            raise ValueError(refusal(f"{job.folder} was", reasons))
        if options.on_stale == "recompute":
            return False
    if record.get("drawing") == drawing_hash(module) and all(_drawn(job.folder, name) for name in module.CAPTIONS):
        options.say(f"{job.name}: nothing to do, {job.folder} is complete")
    else:
        options.say(f"{job.name}: the rows in {job.folder} are complete, figures and claims are made again")
        _draw(job, load_rows(job.folder), {key: record[key] for key in (*MADE_BY, "seconds") if key in record})
    return True


def _drawn(folder: Path, figure: str) -> bool:
    return all((folder / f"{figure}.{suffix}").exists() for suffix in ("svg", "png"))


def _draw(job: Job, rows: list[dict[str, Any]], made: dict[str, Any]) -> None:
    """Rows, figures and record."""
    from .figures import save

    module = find(job.name)
    save_rows(job.folder, rows)
    for figure, drawing in module.plot(rows).items():
        save(drawing, job.folder, figure)
    tables = module.tables(rows) if hasattr(module, "tables") else {}
    made = {**made, "claims": module.claims(rows), "tables": tables, "drawing": drawing_hash(module)}
    save_record(job.folder, job.config, made)
