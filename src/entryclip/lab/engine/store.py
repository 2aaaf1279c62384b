"""Results on disk: one folder per experiment with its rows, claims, figures and a record of what made them."""

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .files import write_json, write_text
from .provenance import config_hash

NEEDED = {"claims", "config", "config_hash", "seconds", "versions", "python", "machine", "commit"}


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


def save_rows(folder: Path, rows: Iterable[dict[str, Any]]) -> None:
    """One JSON object per line."""
    write_text(folder / "rows.jsonl", "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))


def load_rows(folder: Path, first: int | None = None) -> list[dict[str, Any]]:
    """The rows of one experiment, or the `first` ones."""
    path = folder / "rows.jsonl"
    try:
        with path.open(encoding="utf-8") as lines:
            return [dict(json.loads(line)) for line in itertools.islice(lines, first)]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): run the experiment again") from error


def save_record(folder: Path, config: Any, more: dict[str, Any]) -> None:
    """What was run, and `more`: with what, for how long, and what came of the paper's claims."""
    record = {
        "experiment": folder.name,
        "config": dataclasses.asdict(config),
        "config_hash": config_hash(config),
        "rows_sha256": rows_sha256(folder),
        **more,
    }
    write_json(folder / "record.json", record)


def load_record(folder: Path) -> dict[str, Any]:
    """What `save_record` wrote."""
    path = folder / "record.json"
    try:
        record = dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}): run the experiment again") from error
    if missing := NEEDED - record.keys():
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}: run the experiment again")
    return record


def rows_sha256(folder: Path) -> str | None:
    """The checksum of the rows that are there."""
    path = folder / "rows.jsonl"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None
