"""Training runs on disk, and how one differs from another: its settings, its loss, and the tokens it needs for it.

>>> curve = [EvaluationPoint(0, 4.0), EvaluationPoint(100, 3.0), EvaluationPoint(200, 2.0)]
>>> first = TrainingRun("a", {"method": "adamw", "steps": 2}, tuple(curve), None)
>>> other = TrainingRun("b", {"method": "post-smooth", "steps": 2}, (*curve[:2], EvaluationPoint(200, 1.0)), None)
>>> compare(first, other)
Comparison(settings={'method': ('adamw', 'post-smooth')}, loss=-1.0, tokens=150.0)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..engine.files import JsonObject
from ..engine.schema import (
    BadFile,
    check,
    fields,
    listed,
    number,
    open_regular,
    optional,
    parse_json,
    read_json,
    text,
    whole,
)

_AGAIN = "train again"
_RECORD = fields(
    {"settings": fields({"method": text(), "steps": whole(1)})}, {"tokens_per_second": optional(number(0))}
)
_ROW = fields({"tokens": whole(), "val_loss": number()})


class EvaluationPoint(NamedTuple):
    """The validation loss after so many tokens."""

    tokens: int
    loss: float


@dataclass(frozen=True)
class TrainingRun:
    """One folder that `entryclip train` wrote to."""

    name: str
    settings: JsonObject
    curve: tuple[EvaluationPoint, ...]
    tokens_per_second: float | None

    @property
    def final(self) -> EvaluationPoint:
        """The last evaluation so far."""
        return self.curve[-1]


class Comparison(NamedTuple):
    """How a run differs from another one."""

    settings: dict[str, tuple[Any, Any]]  # those that differ, of both
    loss: float  # final validation loss less that of the other run
    tokens: float | None  # with which it first reaches the other's final loss; None: never


def is_run(folder: Path) -> bool:
    """Whether `entryclip train` has written to this folder: rows, and a record with settings, or else checkpoints."""
    if not (folder / "rows.jsonl").exists():
        return False
    try:
        found = read_json(folder / "record.json", _AGAIN)
    except (BadFile, OSError):
        return (folder / "checkpoints").is_dir()
    return isinstance(found, dict) and "settings" in found


def find_runs(results: Path) -> list[Path]:
    """The folders of training runs: this one, or those in it and one folder further down."""
    if is_run(results):
        return [results]
    inside = sorted({path.parent for pattern in ("*/rows.jsonl", "*/*/rows.jsonl") for path in results.glob(pattern)})
    return [folder for folder in inside if is_run(folder)]


def load_run(folder: Path, name: str | None = None) -> TrainingRun:
    """Read a run; a `BadFile` names what is wrong with it."""
    path = folder / "rows.jsonl"
    record = read_json(folder / "record.json", _AGAIN)
    check(record, _RECORD, folder / "record.json", _AGAIN)
    with open_regular(path) as lines:
        rows = [parse_json(line, path, _AGAIN) for line in lines]
    check(rows, listed(_ROW), path, _AGAIN)
    if not rows:
        raise BadFile(f"{path} is empty: {_AGAIN}")
    curve = tuple(EvaluationPoint(row["tokens"], row["val_loss"]) for row in rows)
    return TrainingRun(name or folder.name, dict(record["settings"]), curve, record.get("tokens_per_second"))


def compare(first: TrainingRun, other: TrainingRun) -> Comparison:
    """Compare `other` with `first`: settings that differ, final losses, tokens until it reaches the first's loss."""
    names = dict.fromkeys((*first.settings, *other.settings))
    pairs = {name: (first.settings.get(name), other.settings.get(name)) for name in names}
    differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return Comparison(differing, other.final.loss - first.final.loss, _tokens_until(other.curve, first.final.loss))


def _tokens_until(curve: Sequence[EvaluationPoint], level: float) -> float | None:
    """The tokens at which a curve first falls to a level, by straight lines between its points."""
    before = EvaluationPoint(0, math.inf)
    for point in curve:
        if point.loss <= level:
            if not math.isfinite(before.loss) or before.loss == point.loss:
                return float(point.tokens)
            share = (before.loss - level) / (before.loss - point.loss)
            return before.tokens + share * (point.tokens - before.tokens)
        before = point
    return None
