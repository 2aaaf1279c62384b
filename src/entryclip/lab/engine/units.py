"""Units of work on disk: one sealed file each, named by study, config and piece, written when its rows are complete."""

import json
import math
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from .config_fields import unit_fields
from .files import JsonObject, checksum, locked, read_sealed, write_sealed
from .provenance import PROVENANCE, Provenance, hash_fields
from .schema import BadFile, anything, by_name, check, fields, listed, number
from .study import Piece, Row, Study

_SCHEMA = fields({"rows": listed(by_name(anything)), "seconds": number(0)}, PROVENANCE)


@dataclass(frozen=True)
class Unit:
    """One piece of a study at one config: what is done at once, kept in one file, and never done twice."""

    study: Study[Any]
    config: Any
    piece: Piece
    folder: Path  # of the study's results

    @property
    def path(self) -> Path:
        """The file of its rows."""
        name = checksum([hash_fields(self.study.name, unit_fields(self.config)), self.piece])[:16]
        return self.folder / "units" / f"{name}.json"

    @property
    def failure(self) -> Path:
        """The file that says why the unit failed, as long as it has not succeeded since."""
        return self.path.with_suffix(".failed")

    def __str__(self) -> str:
        return f"{self.study.name} {json.dumps(self.piece)}" if self.piece else self.study.name


@dataclass(frozen=True)
class FinishedUnit:
    """The content of a unit's file."""

    rows: list[Row]
    seconds: float
    made_by: Provenance


class State(StrEnum):
    """What came of an attempt at a unit."""

    DONE = "done"
    SKIPPED = "skipped"  # another process had done it meanwhile
    BUSY = "busy"  # another process is at it
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """An attempt at a unit: its state, and the reason where it failed."""

    unit: Unit
    state: State
    reason: str = ""


def first_units(study: Study[Any], config: Any, folder: Path) -> list[Unit]:
    """The units that a study begins with, in the order of its rows."""
    units = [Unit(study, config, piece, folder) for piece in study.units(config)]
    if not units:
        raise ValueError(f"{study.name}: there are no units")
    if len({unit.path for unit in units}) != len(units):
        raise ValueError(f"{study.name}: two units have the same description")
    return units


def read(unit: Unit) -> FinishedUnit | None:
    """Read a finished unit; None where it has no file. A file that is damaged or foreign is a `BadFile`."""
    try:
        found = read_sealed(unit.path)
    except FileNotFoundError:
        return None
    if [found.get("experiment"), found.get("config"), found.get("unit")] != _identity(unit):
        raise BadFile(f"{unit.path} is foreign: it holds another unit than its name says")
    check(found, _SCHEMA, unit.path, "remove it")
    return FinishedUnit(found["rows"], found["seconds"], Provenance.from_json(found))


def outdated(study: Study[Any], config: Any, made_by: Provenance) -> list[str]:
    """Say what could make rows of this provenance differ from those the study makes now; empty if nothing could."""
    return made_by.changes(study.row_modules, study.present_data(config))


def attempt(unit: Unit, *, wait: bool) -> Outcome:
    """Do a unit, unless another process has done it, or is doing it and we do not `wait`.

    An exception of the study is an outcome. A disk that cannot be written is an error: it would meet every unit.
    """
    with locked(unit.path, wait=wait) as ours:
        if not ours:
            return Outcome(unit, State.BUSY)
        if _usable(unit):
            return Outcome(unit, State.SKIPPED)
        start = time.monotonic()
        try:
            rows = _rows(unit)
        except Exception as error:
            return fail(unit, f"{type(error).__name__}: {error}", traceback.format_exc())
        write_sealed(unit.path, {**_header(unit), "seconds": round(time.monotonic() - start, 3), "rows": rows})
        unit.failure.unlink(missing_ok=True)
        return Outcome(unit, State.DONE)


def fail(unit: Unit, reason: str, trace: str = "") -> Outcome:
    """Write down why a unit has no rows; the next run tries it again."""
    write_sealed(unit.failure, {**_header(unit), "reason": reason, "traceback": trace})
    return Outcome(unit, State.FAILED, reason)


def collect(units: Sequence[Unit]) -> list[FinishedUnit]:
    """Read the files of finished units; an OSError names one that is missing."""
    found = []
    for unit in units:
        if (part := read(unit)) is None:
            raise OSError(f"{unit.path} is not here: all processes must share the folder {unit.folder}")
        found.append(part)
    return found


def _usable(unit: Unit) -> bool:
    try:
        found = read(unit)
    except ValueError:
        return False
    return found is not None and not outdated(unit.study, unit.config, found.made_by)


def _rows(unit: Unit) -> list[Row]:
    rows = list(unit.study.run_unit(unit.config, unit.piece))
    for index, row in enumerate(rows):
        for key, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(
                    f"row {index} has {key} = {value}: rows hold finite numbers, or None for what diverged"
                )
    return rows


def _header(unit: Unit) -> JsonObject:
    experiment, config, piece = _identity(unit)
    seed = {**config, **piece}.get("seed", config.get("seeds"))
    made_by = Provenance.now(unit.study.row_modules, unit.study.present_data(unit.config))
    return {"experiment": experiment, "config": config, "unit": piece, "seed": seed, **made_by.to_json()}


def _identity(unit: Unit) -> list[Any]:
    """Study, config and piece as JSON gives them back: tuples are lists."""
    parts = [unit.study.name, unit_fields(unit.config), unit.piece]
    return json.loads(json.dumps(parts, allow_nan=False))
