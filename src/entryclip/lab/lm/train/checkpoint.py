"""Checkpoints: one folder per step, never overwritten, complete or ignored.

    checkpoints/step_000500/model.safetensors    the weights, readable without this package
                            state.pt             the optimizer's state, read with weights_only
                            manifest.json        written last: the run's record, SHA-256 of both files

A folder without its manifest was being written when the process ended; it is ignored and removed.
"""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ...engine.files import explained, read_sealed, write_sealed, write_stream
from ...engine.schema import BadFile, check
from ..data.manifest import hash_file
from ..extras import import_extra
from .checkpoint_schema import checkpoint_manifest
from .records import CheckpointRecord

SafetensorError: type[Exception] = import_extra("safetensors", "saving checkpoints").SafetensorError
_safetensors = import_extra("safetensors.torch", "saving checkpoints")

WEIGHTS, STATE, MANIFEST = "model.safetensors", "state.pt", "manifest.json"
OptimizerState = dict[str, Any]  # torch's: {"state": ..., "param_groups": ...}
_NAME = re.compile(r"step_(\d{6,})")


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a training run needs to continue after `step` steps."""

    step: int
    weights: dict[str, Tensor]
    optimizer: OptimizerState
    record: CheckpointRecord
    place: Path = Path("the checkpoint")  # the folder it was read from


def save(folder: Path, saved: Checkpoint, *, keep: int = 2) -> Path:
    """Write a checkpoint into its own folder below `folder`, and remove all but the last `keep` (0: keep all).

    A checkpoint of that step that is intact stays as it is; a damaged one is replaced. Checkpoints of later steps,
    which can only be damaged ones, are not counted and not removed.
    """
    place = folder / f"step_{saved.step:06d}"
    if _is_intact(place):
        return place
    _remove(place)
    write_stream(place / STATE, lambda file: torch.save(saved.optimizer, file))
    _write_weights(place / WEIGHTS, {name: tensor.contiguous() for name, tensor in saved.weights.items()})
    hashes = {name: hash_file(place / name) for name in (WEIGHTS, STATE)}
    write_sealed(place / MANIFEST, {**saved.record, "format": 1, "step": saved.step, "sha256": hashes})
    places = _numbered(folder)
    for old in places[: places.index(place) + 1][:-keep] if keep else ():
        _remove(old)
    return place


def _is_intact(place: Path) -> bool:
    try:
        _read_manifest(place)
    except (ValueError, FileNotFoundError):
        return False
    return True


def _write_weights(path: Path, weights: dict[str, Tensor]) -> None:
    """Write by safetensors under a temporary name, since it does not flush, then copy through `write_stream`."""
    temporary = path.with_name(f".{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with explained(path):
            _save_file(weights, temporary)
        with temporary.open("rb") as source:
            write_stream(path, lambda file: shutil.copyfileobj(source, file, 2**24))
    finally:
        temporary.unlink(missing_ok=True)


def _save_file(weights: dict[str, Tensor], path: Path) -> None:
    """Call safetensors' `save_file`, and turn its errors of the disk into OSErrors."""
    try:
        _safetensors.save_file(weights, path)
    except SafetensorError as error:
        if code := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(code[1]), str(error)) from error
        raise


def load(place: Path) -> Checkpoint:
    """Read the checkpoint in the folder `place`; a damaged, hostile or foreign one is a `BadFile` naming the file."""
    manifest = _read_manifest(place)
    try:
        state = torch.load(place / STATE, weights_only=True, map_location="cpu")
        weights = _safetensors.load_file(place / WEIGHTS)
    except Exception as error:  # torch's reader raises whatever its parts do
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadFile(f"{place} cannot be read: {reason}") from error
    if not isinstance(state, dict) or not isinstance(state.get("state"), dict):
        raise BadFile(f"{place / STATE} is foreign: it holds no state of an optimizer")
    return Checkpoint(manifest["step"], weights, state, cast(CheckpointRecord, manifest), place)


def _read_manifest(place: Path) -> Any:
    """Read the manifest of a checkpoint and compare both files with their SHA-256."""
    manifest = read_sealed(place / MANIFEST)
    check(manifest, checkpoint_manifest, place / MANIFEST, "remove the checkpoint's folder")
    for name in (WEIGHTS, STATE):
        if not (place / name).is_file() or hash_file(place / name) != manifest["sha256"][name]:
            raise BadFile(f"{place / name} is damaged: its SHA-256 is not the manifest's")
    return manifest


def remove_incomplete(folder: Path) -> None:
    """Remove what a killed process left half written; no other process may be writing."""
    for place in _numbered(folder):
        if not (place / MANIFEST).exists():
            _remove(place)


def load_latest(folder: Path, say: Callable[[str], object]) -> Checkpoint | None:
    """Load the last checkpoint that is intact; None where there is none yet.

    Damaged ones are skipped, and `say` is told of them. Only damaged ones is an error.
    """
    damaged = []
    for place in reversed(_numbered(folder)):
        if not (place / MANIFEST).exists():
            continue
        try:
            found = load(place)
        except ValueError as error:
            damaged.append(str(error))
            continue
        for each in damaged:
            say(f"{each}; continuing from {place.name}")
        return found
    if damaged:
        raise ValueError(f"no checkpoint in {folder} is whole ({damaged[0]}): remove the folder to begin anew")
    return None


def find_latest(folder: Path) -> Path:
    """Return the last complete checkpoint of a run's folder, or `folder` if it is a checkpoint itself."""
    if (folder / MANIFEST).is_file() and (folder / WEIGHTS).is_file():
        return folder
    found = [place for place in _numbered(folder / "checkpoints") if (place / MANIFEST).exists()]
    if not found:
        raise FileNotFoundError(f"no checkpoint in {folder}: give the --out of an `entryclip train` that saved one")
    return found[-1]


def _numbered(folder: Path) -> list[Path]:
    """List the folders of checkpoints, complete or not, in the order of their steps."""
    if not folder.is_dir():
        return []
    steps = {int(match[1]): each for each in folder.iterdir() if (match := _NAME.fullmatch(each.name))}
    return [steps[step] for step in sorted(steps)]


def _remove(place: Path) -> None:
    """Remove a checkpoint, its manifest first: interrupted, it looks like one that was half written."""
    (place / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(place, ignore_errors=True)
