"""Writing files whole or not at all, whatever happens in between; every file of results is written here."""

import contextlib
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from .schema import BadFile, read_json

JsonObject = dict[str, Any]  # the keys and values of a JSON object
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # no space, over the quota, over the limit of a file's size


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the file `path` in one step: write a temporary file beside it, flush it to the disk, rename it."""
    write_stream(path, lambda file: file.write(data))


def write_stream(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Like `write_bytes`, for content too large to hold in memory: `write` is called with the open file."""
    with explained(path):
        _replace(path, write)
    _flush_folder(path.parent)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the error of a full disk into one line that names `path` and the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise OSError(error.errno, f"no space to write {path}: make room and run the same command again") from error
        raise


class _Stream:
    """A file that keeps the first error of its disk: writers in C, such as torch.save, replace it by another."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            _write(file, write)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _write(file: BinaryIO, write: Callable[[Any], object]) -> None:
    stream = _Stream(file)
    try:
        write(stream)
    except Exception:
        if stream.error is not None:
            raise stream.error from None
        raise


def move(source: Path, path: Path) -> None:
    """Rename a finished file in one step, after its content has been flushed to the disk; both paths on one disk."""
    with source.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(source, path)
    _flush_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Like `write_bytes`, for text in UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON; NaN and inf, which JSON does not have, are a ValueError."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_sealed(path: Path, value: JsonObject) -> None:
    """Like `write_json`, with a checksum of `value` inside, which `read_sealed` compares."""
    write_json(path, {"checksum": checksum(value), **value})


def read_sealed(path: Path) -> JsonObject:
    """Read what `write_sealed` wrote. A file cut off, altered or not sealed is a `BadFile` that names it."""
    value = read_json(path, "remove it")
    if not isinstance(value, dict) or "checksum" not in value:
        raise BadFile(f"{path} is foreign: it has no checksum")
    if value.pop("checksum") != checksum(value):
        raise BadFile(f"{path} is damaged: its checksum is not that of its content")
    return value


def checksum(value: Any) -> str:
    """The SHA-256 of a JSON value, whatever the order of its keys.

    >>> checksum({"a": 1, "b": 2.5}) == checksum({"b": 2.5, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()


@contextlib.contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock of `path`; yields True, or False where another process has it and `wait` is not set.

    The operating system locks a file beside `path`, so that the lock ends with its process, however that ends. Whoever
    holds it also removes the temporary files that a killed writer of `path` left behind.
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        yield False
        return
    try:
        for stale in path.parent.glob(f".{path.name}.*.tmp"):
            stale.unlink(missing_ok=True)
        yield True
    finally:
        with contextlib.suppress(OSError):  # still locked: a waiting process notices and makes a new one
            os.unlink(lock.lock_file)
        lock.release()


@contextlib.contextmanager
def alone(path: Path, doing: str) -> Iterator[None]:
    """Hold the lock of `path`; where another process has it, an OSError says that it is `doing` something there."""
    with locked(path, wait=False) as ours:
        if not ours:
            raise OSError(f"another process is {doing} {path.parent}: wait for it, or choose another --out")
        yield


def _flush_folder(folder: Path) -> None:
    """Make a rename in the folder survive a crash, on systems that can open a folder."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
