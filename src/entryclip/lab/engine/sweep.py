"""A grid of configs of one experiment: every combination of the values given, done as units beside all others."""

import dataclasses
import itertools
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..paper import find
from .files import checksum
from .provenance import config_hash
from .reproduce import MADE_BY, Options, announce, collect, made_by
from .runner import execute, plan
from .store import save_record, save_rows
from .units import Outcome, Unit, split

Grid = dict[str, list[Any]]
_KINDS = {int: "a whole number", float: "a number"}


def grid(name: str, over: Sequence[str]) -> Grid:
    """`field=v1,v2` for each field, as values of the field's type.

    >>> grid("learning-rate", ["seeds=1,2", "rates=0.1:0.2,0.3"])
    {'seeds': [1, 2], 'rates': [(0.1, 0.2), (0.3,)]}
    """
    types_ = typing.get_type_hints(find(name).Config)
    found: Grid = {}
    for text in over:
        field, equals, values = text.partition("=")
        if not equals or not values:
            raise ValueError(f"{text!r} is not of the form field=value,value with a field of {', '.join(types_)}")
        if field not in types_:
            raise ValueError(f"{name} has no field {field!r}: choose from {', '.join(types_)}")
        if field in found:
            raise ValueError(f"field {field!r} is given twice: put all its values behind one, {field}=v1,v2")
        found[field] = [_value(field, value, types_[field]) for value in values.split(",")]
        if len({repr(value) for value in found[field]}) != len(found[field]):
            raise ValueError(f"{text!r} has the same value twice")
    if not found:
        raise ValueError(f"nothing to sweep over: give --over field=v1,v2 with a field of {', '.join(types_)}")
    return found


def sweep(
    name: str, over: Grid, results: Path, options: Options, *, backend: str = "loky", cluster: str | None = None
) -> tuple[Path, list[Outcome]]:
    """Run the grid; returns its folder, with the rows of all finished units, and the units that failed.

    The units are kept with the experiment's own, so that what one command has done no other does again.
    """
    module = find(name)
    base = module.Config.quick() if options.quick else module.Config()
    points = [dict(zip(over, values, strict=True)) for values in itertools.product(*over.values())]
    units = {index: _units(name, base, point, results) for index, point in enumerate(points)}
    found = plan([unit for each in units.values() for unit in each], on_stale=options.on_stale)
    announce(name, found, options.say)
    options.started(len(found.finished), len(found.finished) + len(found.to_do))
    outcomes = execute(found.to_do, jobs=options.jobs, backend=backend, cluster=cluster, progress=options.progress)
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    broken = [outcome.unit for outcome in failed]
    finished = [(points[i], unit) for i, each in units.items() for unit in each if unit not in broken]
    folder = results / "sweeps" / f"{name}-{checksum([config_hash(base), over])[:8]}"
    _save(folder, base, over, finished, failed)
    return folder, failed


def _units(name: str, base: Any, point: dict[str, Any], results: Path) -> list[Unit]:
    try:
        config = dataclasses.replace(base, **point)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{', '.join(f'{key}={value}' for key, value in point.items())}: {error}") from error
    return split(name, config, results / name)


def _save(
    folder: Path, base: Any, over: Grid, finished: Sequence[tuple[dict[str, Any], Unit]], failed: Sequence[Outcome]
) -> None:
    """One row per row of a unit, with the values of the swept fields in front; and a record with the failures."""
    parts = collect([unit for _, unit in finished])
    save_rows(
        folder, (_row(point, row) for (point, _), part in zip(finished, parts, strict=True) for row in part["rows"])
    )
    made = made_by(parts) if parts else {**dict.fromkeys(MADE_BY), "versions": {}, "seconds": 0}
    failures = [{"unit": str(each.unit), "config": dataclasses.asdict(each.unit.config)} for each in failed]
    reasons = [{**failure, "reason": each.reason} for failure, each in zip(failures, failed, strict=True)]
    save_record(folder, base, {**made, "over": over, "failed": reasons, "claims": []})


def _row(point: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """A swept field keeps its name unless the row has one of that name; several values are one text, as on input."""
    front = {f"config.{key}" if key in row else key: value for key, value in point.items()}
    return {key: ":".join(map(str, value)) if isinstance(value, tuple) else value for key, value in front.items()} | row


def _value(field: str, text: str, kind: Any) -> Any:
    """`text` as a value of type `kind`: a number, true or false, text, one of a choice, or several joined by colons."""
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        if type(None) in arguments and text == "none":
            return None
        return _value(field, text, next(each for each in arguments if each is not type(None)))
    if typing.get_origin(kind) is tuple:
        return tuple(_value(field, part, arguments[0]) for part in text.split(":"))
    if typing.get_origin(kind) is typing.Literal or kind is bool:
        choices = {str(each).lower(): each for each in (arguments or (True, False))}
        if text.lower() not in choices:
            raise ValueError(f"{field} = {text!r} is not one of {', '.join(choices)}")
        return choices[text.lower()]
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{field} = {text!r} is not {_KINDS.get(kind, kind)}") from None
