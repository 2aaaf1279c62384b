"""Run studies and leave their rows, figures and records in a folder."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .job import Job
from .provenance import Provenance, config_hash, drawing_hash
from .runner import OnStale, Plan, execute, refusal
from .store import Record, load_record, load_rows, rows_sha256, save_record, save_rows
from .study import Row, Study
from .units import FinishedUnit, Outcome, State, Unit, outdated


@dataclass
class Options:
    """How a command runs studies, and whom it tells."""

    quick: bool = False
    jobs: int | None = None  # processes; one per core
    on_stale: OnStale = OnStale.REFUSE
    say: Callable[[str], object] = lambda _: None  # takes a line about what is skipped, damaged, ...
    started: Callable[[int, int], object] = lambda finished, total: None  # takes numbers of units
    progress: Callable[[Outcome], object] = lambda _: None  # takes every unit that ends
    changes: Mapping[str, Any] = field(default_factory=dict)  # fields of the config that differ from its defaults


def reproduce(study: Study[Any], results: Path, *, quick: bool = False) -> Path:
    """Run a study, quick or full, in this process; returns its folder, `results` / its name."""
    if failed := reproduce_all([study], results, Options(quick=quick, jobs=1)):
        raise RuntimeError(f"{study.name}: {failed[0].reason}")
    return results / study.name


def reproduce_all(studies: Sequence[Study[Any]], results: Path, options: Options) -> list[Outcome]:
    """Run several studies, their units side by side, and return the units that failed.

    A study whose units are all there gets its rows, figures and record; one with a failed unit keeps what it had.
    """
    jobs = [job for study in studies if not _complete(job := _job(study, results, options), options)]
    queue: list[Unit] = []
    for job in jobs:
        found = job.begin(options.on_stale)
        announce(job.study.name, found, options.say)
        queue += found.to_do
    _tell_progress(jobs, options)
    by_name, grows = {job.study.name: job for job in jobs}, any(job.may_grow for job in jobs)

    def following(outcome: Outcome) -> list[Unit]:
        job = by_name[outcome.unit.study.name]
        found = job.take_outcome(outcome, options.on_stale)
        announce(job.study.name, found, options.say)
        _tell_progress(jobs, options)
        return found.to_do

    outcomes = execute(queue, jobs=options.jobs, progress=options.progress, following=following if grows else None)
    failed = [each for each in outcomes if each.state is State.FAILED]
    for job in jobs:
        if job.study.name not in {each.unit.study.name for each in failed}:
            parts = job.parts()
            _finish(job, [row for part in parts for row in part.rows], *together(parts))
    return failed


def _tell_progress(jobs: Sequence[Job], options: Options) -> None:
    options.started(sum(job.ended for job in jobs), sum(len(job.units) for job in jobs))


def announce(name: str, found: Plan, say: Callable[[str], object]) -> None:
    """Say which files the plan found wanting, and how many units it skips."""
    for note in found.notes:
        say(f"{name}: {note}")
    if found.finished:
        say(f"{name}: {len(found.finished)} of {len(found.finished) + len(found.to_do)} units are there and skipped")


def together(parts: Sequence[FinishedUnit]) -> tuple[Provenance, float]:
    """The provenance of several finished units as one, and their seconds in all."""
    seconds = round(sum(part.seconds for part in parts), 3)
    if not parts:
        return Provenance({}), 0
    same = len({(part.made_by.code, tuple(part.made_by.versions.items())) for part in parts}) == 1
    last = parts[-1].made_by
    return last if same else dataclasses.replace(last, code="mixed"), seconds


def _job(study: Study[Any], results: Path, options: Options) -> Job:
    config = study.configured(quick=options.quick, changes=options.changes)
    return Job(study, config, results / study.name)


def _complete(job: Job, options: Options) -> bool:
    """Whether all rows are there, as this config and code make them; outdated figures and claims are made again."""
    name, folder = job.study.name, job.folder
    try:
        record = load_record(folder)
    except (OSError, ValueError):
        return False
    if record.config_hash != config_hash(name, job.config):
        options.say(f"{name}: the rows in {folder} are of another config and are replaced; its units are kept")
        return False
    if record.rows_sha256 is None or record.rows_sha256 != rows_sha256(folder):
        return False
    if reasons := outdated(job.study, job.config, record.made_by):
        if options.on_stale is OnStale.REFUSE:
            raise ValueError(refusal(f"{folder} was", reasons))
        if options.on_stale is OnStale.RECOMPUTE:
            return False
    figures = job.study.captions if record.figures is None else record.figures  # a quick study may draw fewer
    if record.drawing == drawing_hash(job.study) and all(_drawn(folder, each) for each in figures):
        options.say(f"{name}: nothing to do, {folder} is complete")
    else:
        options.say(f"{name}: the rows in {folder} are complete, figures and claims are made again")
        _finish(job, load_rows(folder), record.made_by, record.seconds)
    return True


def _drawn(folder: Path, figure: str) -> bool:
    return all((folder / f"{figure}.{suffix}").exists() for suffix in ("svg", "png"))


def _finish(job: Job, rows: list[Row], made_by: Provenance, seconds: float) -> None:
    """Write the rows, the figures and, last, the record."""
    from .figures import save

    study = job.study
    with job.rows_blamed():
        figures, claims, tables = study.figures(rows), tuple(study.claims(rows)), study.tables(rows)
    save_rows(job.folder, rows)
    for name, figure in figures.items():
        save(figure, job.folder, name)
    record = Record(
        study.name,
        dataclasses.asdict(job.config),
        config_hash(study.name, job.config),
        made_by,
        seconds,
        claims=claims,
        tables=tables,
        drawing=drawing_hash(study),
        figures=tuple(figures),
    )
    save_record(job.folder, record)
