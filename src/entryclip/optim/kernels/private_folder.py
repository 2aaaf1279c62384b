"""A folder that no other user of the machine can put code into, and shared libraries that are loaded from there.

Whoever can write a shared library that this process loads runs code in it. So a file counts only if it is a regular
file of this user in a folder of this user that nobody else may enter. The folder is opened once, and everything after
that goes through its descriptor: another folder that is put under its name later is not looked at.
"""

import contextlib
import ctypes
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def user_cache() -> Path:
    """Return the user's cache folder: `XDG_CACHE_HOME`, or ~/.cache where that is unset or not an absolute path.

    The XDG specification says to ignore a relative path: it would name another folder in every working directory.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return given if given.is_absolute() else Path.home() / ".cache"


class PrivateFolder:
    """A folder of this user alone, held open by its descriptor; made by `private_folder`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None unless it is a regular file that only this user can have written."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # without waiting for the writer of a FIFO
        try:
            handle = os.open(name, flags, dir_fd=self._descriptor)
        except OSError:  # not there, or a symbolic link
            return None
        with open(handle, "rb") as file:
            found = os.fstat(handle)
            ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1
            return file.read() if ours and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None

    def keep_library(self, stem: str, content: bytes) -> str:
        """Store a library under a name that ends with its checksum, all of it or nothing; return that name."""
        name = f"{stem}-{hashlib.sha256(content).hexdigest()}.so"
        unfinished = f"{secrets.token_hex(8)}.tmp"
        try:
            handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._descriptor)
            with open(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
            os.fsync(self._descriptor)
        except BaseException:
            self._remove(unfinished)
            raise
        return name

    def find_library(self, stem: str) -> str | None:
        """Return the name of the intact library with this stem, if there is one; damaged ones are removed.

        A truncated library must not be loaded: the process would end at the first access behind the file's end.
        """
        for name in os.listdir(self._descriptor):
            if name.startswith(f"{stem}-") and name.endswith(".so"):
                content = self.read(name)
                if content is not None and name == f"{stem}-{hashlib.sha256(content).hexdigest()}.so":
                    return name
                self._remove(name)
        return None

    def load(self, name: str) -> ctypes.CDLL:
        """Load a library of this folder. Where the system has no paths by descriptor, by the folder's own path."""
        place = Path(f"/proc/self/fd/{self._descriptor}")
        try:
            return ctypes.CDLL(str((place if place.exists() else self.path) / name))
        except OSError as error:
            remedy = "set XDG_CACHE_HOME to a folder that programs may be run from, or leave fused off"
            raise RuntimeError(f"{self.path / name} cannot be loaded ({error}): {remedy}") from error

    def empty(self) -> None:
        """Remove the files of the folder."""
        for name in os.listdir(self._descriptor):
            self._remove(name)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self._descriptor)


@contextlib.contextmanager
def private_folder(path: Path) -> Iterator[PrivateFolder]:
    """Open a folder for this user alone, and make it where it is missing.

    A folder of this user that others were allowed into is closed to them and emptied first. A PermissionError says that
    the folder is another user's.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        folder, found = PrivateFolder(path, descriptor), os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user")
        if found.st_mode & _OTHERS:
            os.fchmod(descriptor, 0o700)
            folder.empty()
        yield folder
    finally:
        os.close(descriptor)


def kernel_cache() -> contextlib.AbstractContextManager[PrivateFolder]:
    """Open the folder for compiled kernels in the user's cache; an OSError where no such folder is safe."""
    parent = user_cache() / "entryclip"
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    parent = parent.resolve()
    _check_unmoved_by_others(parent)
    return private_folder(parent / "kernels")


def _check_unmoved_by_others(path: Path) -> None:
    """Refuse a path with a folder that every user may rename; the sticky bit, as /tmp has it, protects what is in one.

    A group that may write, as with umask 002, is usually the user's own, and the descriptor holds against the others.
    """
    for folder in (path, *path.parents):
        found = folder.stat()
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            raise PermissionError(f"{folder} can be written by all users")
        if found.st_uid not in (0, os.geteuid()):
            raise PermissionError(f"{folder} belongs to another user")
