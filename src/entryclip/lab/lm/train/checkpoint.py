"""Checkpoints: one folder per step, never overwritten, whole or not there at all.

    checkpoints/step_000500/model.safetensors    the weights, for anybody
                            state.pt             the optimizer's state, read with weights_only
                            manifest.json        written last: what made it, the rows so far, SHA-256 of both files

A folder without its manifest is one that was being written when the process ended; it is ignored and cleared away.
"""

import hashlib
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ...engine.files import explained, read_sealed, write_sealed, write_stream

WEIGHTS, STATE, MANIFEST = "model.safetensors", "state.pt", "manifest.json"
_NAME = re.compile(r"step_(\d{6,})")


def save(folder: Path, step: int, content: dict[str, Any], about: dict[str, Any], *, keep: int = 2) -> Path:
    """Write `content`, {"model": weights, "optimizer": state}, and `about`; the last `keep` stay (0: all).

    A whole one of that step stays as it is, a damaged one gives way. Damaged ones of later steps do not count as kept.
    """
    place = folder / f"step_{step:06d}"
    if _whole(place):
        return place
    _remove(place)
    write_stream(place / STATE, lambda file: torch.save(content["optimizer"], file))
    weights = {name: tensor.contiguous() for name, tensor in content["model"].items()}
    _write_weights(place / WEIGHTS, weights)
    hashes = {name: _hash(place / name) for name in (WEIGHTS, STATE)}
    write_sealed(place / MANIFEST, {"format": 1, "step": step, "sha256": hashes, **about})
    places = _numbered(folder)
    for old in places[: places.index(place) + 1][:-keep] if keep else ():
        _remove(old)
    return place


def _whole(place: Path) -> bool:
    try:
        _checked(place)
    except (ValueError, FileNotFoundError):
        return False
    return True


def _write_weights(path: Path, weights: dict[str, torch.Tensor]) -> None:
    """safetensors writes to names only: under a temporary one, then through the one place that flushes."""
    temporary = path.with_name(f".{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with explained(path):
            _save_file(weights, temporary)
        with temporary.open("rb") as source:
            write_stream(path, lambda file: shutil.copyfileobj(source, file, 2**24))
    finally:
        temporary.unlink(missing_ok=True)


def _save_file(weights: dict[str, torch.Tensor], path: Path) -> None:
    """safetensors' own, with what the disk says against it as an OSError."""
    try:
        save_file(weights, path)
    except SafetensorError as error:
        if code := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(code[1]), str(error)) from error
        raise


def load(place: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """`content` and `about` of a checkpoint; a damaged, hostile or foreign one is a ValueError naming the file."""
    about = _checked(place)
    try:
        state = torch.load(place / STATE, weights_only=True, map_location="cpu")
        return {"model": load_file(place / WEIGHTS), "optimizer": state}, about
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError) as error:
        raise ValueError(f"{place} cannot be read: {str(error).splitlines()[0]}") from error


def _checked(place: Path) -> dict[str, Any]:
    """The manifest, where both files are as it says."""
    about = read_sealed(place / MANIFEST)
    if about.get("format") != 1:
        raise ValueError(f"{place / MANIFEST} is foreign: its format is {about.get('format')!r}, this reads 1")
    for name, expected in about["sha256"].items():
        if not (place / name).is_file() or _hash(place / name) != expected:
            raise ValueError(f"{place / name} is damaged: its SHA-256 is not the manifest's")
    return about


def clear(folder: Path) -> None:
    """Remove what a killed process left half written; nobody may be writing."""
    for place in _numbered(folder):
        if not (place / MANIFEST).exists():
            _remove(place)


def load_last(folder: Path, say: Callable[[str], object]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The last checkpoint that is whole; damaged ones are named and passed over. None: there is none yet."""
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
            say(f"{each}; going on from {place.name}")
        return found
    if damaged:
        raise ValueError(f"no checkpoint in {folder} is whole ({damaged[0]}): remove the folder to begin anew")
    return None


def last(folder: Path) -> Path:
    """The last complete checkpoint of a run's folder, or the checkpoint that `folder` is itself."""
    if (folder / MANIFEST).is_file() and (folder / WEIGHTS).is_file():
        return folder
    found = [place for place in _numbered(folder / "checkpoints") if (place / MANIFEST).exists()]
    if not found:
        raise FileNotFoundError(f"no checkpoint in {folder}: it is the --out of an `entryclip train` that saved one")
    return found[-1]


def _numbered(folder: Path) -> list[Path]:
    """In the order of their steps."""
    if not folder.is_dir():
        return []
    steps = {int(match[1]): each for each in folder.iterdir() if (match := _NAME.fullmatch(each.name))}
    return [steps[step] for step in sorted(steps)]


def _remove(place: Path) -> None:
    """The manifest first: what is half removed is then as what was half written."""
    (place / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(place, ignore_errors=True)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
