"""Results on disk: one folder per experiment with its rows, claims, figures and a record of what made them."""

import dataclasses
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..files import write_json, write_text


def check_folder(folder: Path) -> None:
    """Make sure, before any work is done, that results can be written to `folder`."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: choose a folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"cannot write to {folder}: choose another folder with --out")


def save_rows(folder: Path, rows: Iterable[dict[str, Any]]) -> None:
    """One JSON object per line."""
    write_text(folder / "rows.jsonl", "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))


def load_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of one experiment."""
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def save_record(folder: Path, name: str, config: Any, seconds: float, claims: list[dict[str, Any]]) -> None:
    """What was run, with what, for how long, and what came of the paper's claims."""
    record = {
        "experiment": name,
        "config": dataclasses.asdict(config),
        "config_hash": config_hash(config),
        "seconds": round(seconds, 3),
        "versions": {package: version(package) for package in ("entryclip", "torch", "numpy", "scipy")},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "commit": commit(),
        "claims": claims,
    }
    write_json(folder / "record.json", record)


def load_record(folder: Path) -> dict[str, Any]:
    """What `save_record` wrote."""
    path = folder / "record.json"
    try:
        record = dict(json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): run the experiment again") from error
    if (
        missing := {"claims", "config", "config_hash", "seconds", "versions", "python", "machine", "commit"}
        - record.keys()
    ):
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}: run the experiment again")
    return record


def config_hash(config: Any) -> str:
    """Names a result by what was asked for: the same for equal configs, in every process."""
    text = json.dumps([type(config).__module__, dataclasses.asdict(config)], sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def commit() -> str | None:
    """The commit of the source tree this runs from, with `+` where it has been edited; None outside of one."""
    try:
        where = {"cwd": Path(__file__).parent, "capture_output": True, "text": True, "check": True, "timeout": 10}
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], **where).stdout.strip()  # type: ignore[call-overload]
        dirty = subprocess.run(["git", "status", "--porcelain", "--", ".."], **where).stdout  # type: ignore[call-overload]
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if dirty.strip() else "")
