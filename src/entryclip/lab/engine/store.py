"""Results on disk: one folder per study with its rows, its figures, and a record of what made them."""

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .files import JsonObject, write_json, write_text
from .provenance import PROVENANCE, Provenance
from .schema import (
    anything,
    by_name,
    check,
    fields,
    flag,
    listed,
    number,
    open_regular,
    optional,
    parse_json,
    read_json,
    sha256,
    text,
)
from .study import Claim, Row

_AGAIN = "run the study again"
_ROW = by_name(anything)
_NEEDED = {
    "claims": listed(fields({"claim": text(), "measured": text(), "holds": flag})),
    "config": by_name(anything),
    "config_hash": text(),
    "seconds": number(0),
    **{key: PROVENANCE[key] for key in ("versions", "python", "machine", "commit")},
}
_ALLOWED = {
    "experiment": text(),
    "tables": optional(by_name(listed(_ROW))),
    "drawing": optional(text()),
    "figures": optional(listed(text())),
    "over": optional(by_name(listed(anything))),
    "failed": optional(listed(fields({"unit": text(), "config": by_name(anything), "reason": text()}))),
    "summary": optional(listed(text())),
    "rows_sha256": optional(sha256()),
    **{key: PROVENANCE[key] for key in ("code", "data")},
}


@dataclass(frozen=True)
class Failure:
    """A unit of a sweep that has no rows, and why."""

    unit: str
    config: JsonObject
    reason: str


@dataclass(frozen=True)
class Record:
    """What was run, with what, for how long, and what came of it: the file `record.json` beside the rows."""

    experiment: str  # the study, or the name of a diagnosis or sweep
    config: JsonObject
    config_hash: str
    made_by: Provenance
    seconds: float  # of work, over all units
    claims: tuple[Claim, ...] = ()
    tables: Mapping[str, list[Row]] = field(default_factory=dict)  # by caption
    drawing: str | None = None  # a hash of the code that made the figures, claims and tables
    figures: tuple[str, ...] | None = None  # the names of those that were drawn; None where a file does not say
    over: Mapping[str, list[Any]] | None = None  # a sweep's fields and their values
    failed: tuple[Failure, ...] = ()  # a sweep's units without rows
    summary: tuple[str, ...] = ()  # a diagnosis in words
    rows_sha256: str | None = None  # the checksum of rows.jsonl; filled in by `save_record`

    @classmethod
    def from_json(cls, found: JsonObject) -> "Record":
        """Read a record; one of an earlier version may lack tables, checksum and hashes."""
        return cls(
            experiment=str(found.get("experiment")),
            config=dict(found["config"]),
            config_hash=found["config_hash"],
            made_by=Provenance.from_json(found),
            seconds=found["seconds"],
            claims=tuple(Claim(each["claim"], each["measured"], each["holds"]) for each in found["claims"]),
            tables=dict(found.get("tables") or {}),
            drawing=found.get("drawing"),
            figures=None if found.get("figures") is None else tuple(found["figures"]),
            over=found.get("over"),
            failed=tuple(Failure(each["unit"], each["config"], each["reason"]) for each in found.get("failed") or []),
            summary=tuple(found.get("summary") or []),
            rows_sha256=found.get("rows_sha256"),
        )

    def to_json(self) -> JsonObject:
        """The JSON object; what only a study, a sweep or a diagnosis has is left out of the others."""
        found = dataclasses.asdict(self)
        made_by = found.pop("made_by") and self.made_by.to_json()
        optional = {key: found.pop(key) for key in ("drawing", "over", "failed", "summary")}
        if self.figures is None:
            found.pop("figures")
        return {**found, **made_by, **{key: value for key, value in optional.items() if value}}


def check_folder(folder: Path) -> None:
    """Make sure, before any work is done, that results can be written to `folder`."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: choose a folder with --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot make the folder {folder} ({error.strerror}): choose another with --out") from error
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"cannot write to {folder}: choose another folder with --out")


def save_rows(folder: Path, rows: Iterable[Row]) -> None:
    """Write `rows.jsonl`, one JSON object per line."""
    write_text(folder / "rows.jsonl", "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))


def load_rows(folder: Path, first: int | None = None) -> list[Row]:
    """Read the rows in a folder, or only the `first` ones."""
    path = folder / "rows.jsonl"
    with open_regular(path) as lines:
        rows = [parse_json(line, path, _AGAIN) for line in itertools.islice(lines, first)]
    check(rows, listed(_ROW), path, _AGAIN)
    return rows


def save_record(folder: Path, record: Record) -> None:
    """Write `record.json`, with the checksum of the rows that are there."""
    write_json(folder / "record.json", dataclasses.replace(record, rows_sha256=rows_sha256(folder)).to_json())


def load_record(folder: Path) -> Record:
    """Read `record.json`; a `BadFile` names the file and the field where one is missing or not as it should be."""
    path = folder / "record.json"
    found = read_json(path, _AGAIN)
    check(found, fields(_NEEDED, _ALLOWED), path, _AGAIN)
    return Record.from_json(found)


def rows_sha256(folder: Path) -> str | None:
    """The checksum of the file of rows; None where there is none."""
    try:
        with open_regular(folder / "rows.jsonl") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None
