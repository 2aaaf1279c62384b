"""A study at every combination of values of some fields of its config, its units done beside all others."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .files import checksum
from .grid import FieldValues, Grid, typed
from .provenance import config_hash
from .reproduce import Options, announce, together
from .runner import Backend, execute, plan
from .store import Failure, Record, save_record, save_rows
from .study import Row, Study
from .units import Outcome, State, Unit, collect, first_units


class Point(NamedTuple):
    """One combination of values, and the study's units there."""

    values: FieldValues
    units: list[Unit]


def sweep(
    study: Study[Any],
    over: Grid,
    results: Path,
    options: Options,
    *,
    backend: Backend = Backend.LOKY,
    cluster: str | None = None,
) -> tuple[Path, list[Outcome]]:
    """Run the grid; returns its folder, with the rows of all finished units, and the units that failed.

    The units are kept with the study's own, so that what one command has done no other does again.
    """
    base = study.configured(quick=options.quick)
    combinations = [dict(zip(over, values, strict=True)) for values in itertools.product(*over.values())]
    points = [_point(study, base, values, results) for values in combinations]
    found = plan([unit for point in points for unit in point.units], on_stale=options.on_stale)
    announce(study.name, found, options.say)
    options.started(len(found.finished), len(found.finished) + len(found.to_do))
    outcomes = execute(found.to_do, jobs=options.jobs, backend=backend, cluster=cluster, progress=options.progress)
    failed = [outcome for outcome in outcomes if outcome.state is State.FAILED]
    folder = results / "sweeps" / f"{study.name}-{checksum([config_hash(study.name, base), over])[:8]}"
    broken = [outcome.unit for outcome in failed]
    whole = [Point(point.values, [unit for unit in point.units if unit not in broken]) for point in points]
    made_by, seconds = together(collect([unit for point in whole for unit in point.units]))
    save_rows(folder, [row for point in whole for row in _rows(point)])
    config, failures = dataclasses.asdict(base), tuple(map(_failure, failed))
    record = Record(folder.name, config, config_hash(study.name, base), made_by, seconds, over=over, failed=failures)
    save_record(folder, record)
    return folder, failed


def _point(study: Study[Any], base: Any, values: FieldValues, results: Path) -> Point:
    try:
        config = dataclasses.replace(base, **values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{', '.join(f'{key}={value}' for key, value in values.items())}: {error}") from error
    return Point(values, first_units(study, config, results / study.name))


def _rows(point: Point) -> Sequence[Row]:
    """The rows of its units, with the values of the swept fields in front."""
    return [_labelled(point.values, row) for part in collect(point.units) for row in part.rows]


def _labelled(values: FieldValues, row: Row) -> Row:
    """A swept field keeps its name unless the row has one of that name; several values are one text, as typed."""
    front = {f"config.{key}" if key in row else key: value for key, value in values.items()}
    return {key: typed(value) if isinstance(value, tuple) else value for key, value in front.items()} | row


def _failure(outcome: Outcome) -> Failure:
    return Failure(str(outcome.unit), dataclasses.asdict(outcome.unit.config), outcome.reason)
