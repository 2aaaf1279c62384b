"""Units of work on disk: one sealed file each, named by what was asked for, written when its rows are complete.

An experiment that has `units(config)` and `run_unit(config, unit)` is done in pieces; any other is one piece.
"""

import dataclasses
import json
import math
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..lm.data.manifest import content_hash
from ..paper import find
from .files import checksum, locked, read_sealed, write_sealed
from .provenance import changes, config_hash, provenance

Row = dict[str, Any]


@dataclass(frozen=True)
class Unit:
    """A piece of an experiment: its name, its config, and a description of the piece that JSON can hold."""

    experiment: str
    config: Any
    piece: dict[str, Any]
    folder: Path  # the experiment's

    @property
    def path(self) -> Path:
        name = checksum([config_hash(self.config), self.piece])[:16]
        return self.folder / "units" / f"{name}.json"

    @property
    def failure(self) -> Path:
        """Where it says why the unit failed, as long as it has not succeeded since."""
        return self.path.with_suffix(".failed")

    def __str__(self) -> str:
        return f"{self.experiment} {json.dumps(self.piece)}" if self.piece else self.experiment


def split(name: str, config: Any, folder: Path, rows: Sequence[Row] | None = None) -> list[Unit]:
    """The units of an experiment, in the order of its rows; given the rows of some, the units that follow from them."""
    module = find(name)
    if rows is not None:
        pieces = module.next_units(config, rows) if hasattr(module, "next_units") else []
        return [Unit(name, config, piece, folder) for piece in pieces]
    pieces = module.units(config) if hasattr(module, "units") else [{}]
    units = [Unit(name, config, piece, folder) for piece in pieces]
    if not units or len({unit.path for unit in units}) != len(units):
        raise ValueError(f"{name}: {'two units have the same description' if units else 'there are no units'}")
    return units


def read(unit: Unit) -> dict[str, Any] | None:
    """A finished unit's file; None where there is none. A damaged or foreign one is a ValueError."""
    try:
        found = read_sealed(unit.path)
    except FileNotFoundError:
        return None
    if [found.get("experiment"), found.get("config"), found.get("unit")] != _identity(unit):
        raise ValueError(f"{unit.path} is foreign: it holds another unit than its name says")
    if not isinstance(found.get("rows"), list):
        raise ValueError(f"{unit.path} is foreign: it has no rows")
    return found


def stale(unit: Unit, found: dict[str, Any]) -> list[str]:
    """What has changed since a finished unit was made; empty where it can be used."""
    return outdated(find(unit.experiment), unit.config, found)


def outdated(module: ModuleType, config: Any, found: dict[str, Any]) -> list[str]:
    """What could make these rows differ from those of today, in words: versions, code, data."""
    reasons = changes(found, module)
    if found.get("data") is not None and found["data"] != data_of(config):
        reasons.append(f"other data than is in {config.data or 'the default folder'} now")
    return reasons


def data_of(config: Any) -> str | None:
    """Tells the shards in the `folder()` of a config from others; None where it has none."""
    try:
        return content_hash(config.folder()) if hasattr(config, "folder") else None
    except FileNotFoundError:
        return None


@dataclass(frozen=True)
class Outcome:
    """What came of an attempt: done, skipped (done by another process meanwhile), busy (another is at it) or failed."""

    unit: Unit
    state: str
    reason: str = ""


def attempt(unit: Unit, *, wait: bool) -> Outcome:
    """Do a unit, unless another process has done it, or is doing it and we do not `wait`.

    An experiment's exception is an outcome. What the disk says against writing is not: it would meet every unit.
    """
    with locked(unit.path, wait=wait) as ours:
        if not ours:
            return Outcome(unit, "busy")
        if _usable(unit):
            return Outcome(unit, "skipped")
        start = time.monotonic()
        try:
            rows = _rows(unit)
        except Exception as error:
            return fail(unit, f"{type(error).__name__}: {error}", traceback.format_exc())
        write_sealed(unit.path, {**_header(unit), "seconds": round(time.monotonic() - start, 3), "rows": rows})
        unit.failure.unlink(missing_ok=True)
        return Outcome(unit, "done")


def fail(unit: Unit, reason: str, trace: str = "") -> Outcome:
    """Put down why a unit has no rows; the next run tries again."""
    write_sealed(unit.failure, {**_header(unit), "reason": reason, "traceback": trace})
    return Outcome(unit, "failed", reason)


def _usable(unit: Unit) -> bool:
    try:
        found = read(unit)
    except ValueError:
        return False
    return found is not None and not stale(unit, found)


def _rows(unit: Unit) -> list[Row]:
    module = find(unit.experiment)
    rows = list(module.run_unit(unit.config, unit.piece) if hasattr(module, "units") else module.run(unit.config))
    for number, row in enumerate(rows):
        for key, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(
                    f"row {number} has {key} = {value}: rows hold finite numbers, or None for what diverged"
                )
    return rows


def _header(unit: Unit) -> dict[str, Any]:
    experiment, config, piece = _identity(unit)
    seed = {**config, **piece}.get("seed", config.get("seeds"))
    made_by = provenance(find(unit.experiment))
    made_from = {"data": data} if (data := data_of(unit.config)) else {}
    return {"experiment": experiment, "config": config, "unit": piece, "seed": seed, **made_by, **made_from}


def _identity(unit: Unit) -> list[Any]:
    """As JSON gives it back: tuples as lists."""
    return json.loads(json.dumps([unit.experiment, dataclasses.asdict(unit.config), unit.piece], allow_nan=False))
