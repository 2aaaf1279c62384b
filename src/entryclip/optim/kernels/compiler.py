"""Compile the C code of this package for this machine at first use, and keep the library for the next time.

The shared library lies in a folder that only its owner may write to ($XDG_CACHE_HOME or ~/.cache, entryclip/), under a
name made of the source, the compiler and the processor: another version, compiler or machine has another file.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

_FLAGS = ["-std=gnu11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"]
# In order of preference. clang knows no vector width; without OpenMP there is one thread.
_MACHINE = [["-march=native", "-mprefer-vector-width=512", "-fopenmp"], ["-march=native", "-fopenmp"], ["-fopenmp"], []]


@functools.cache
def library(source: Path) -> ctypes.CDLL:
    """Return the library compiled from this file; a RuntimeError says so where there is no C compiler."""
    compiler = _compiler()
    path = _folder() / f"{source.stem}-{_fingerprint(source, compiler)}.so"
    if not path.exists():
        _compile(compiler, source, path)
    return ctypes.CDLL(str(path))


def _compiler() -> list[str]:
    """Return the compiler's command: `CC` if set, else the first of cc, gcc and clang that is there."""
    if wanted := os.environ.get("CC"):
        return shlex.split(wanted)
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    raise RuntimeError("fused=True needs a C compiler and found none: install gcc or clang, set CC, or leave fused off")


def _fingerprint(source: Path, compiler: list[str]) -> str:
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=False).stdout
    headers = [each.read_bytes() for each in sorted(source.parent.glob("*.h"))]
    parts = [source.read_bytes(), *headers, version, repr((compiler, _FLAGS, _MACHINE)).encode(), _processor()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:20]


def _processor() -> bytes:
    """Return a description that tells processors apart: several kinds of machine may share a home folder."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        lines = []
    return b"\n".join(sorted({line for line in lines if line.startswith((b"model name", b"flags", b"Features"))})) or (
        f"{platform.machine()} {platform.processor()}".encode()
    )


def _folder() -> Path:
    """Return a folder that only the user may write to; one for this process alone where there is none."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "entryclip"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if os.access(folder, os.W_OK) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="entryclip-"))


def _compile(compiler: list[str], source: Path, path: Path) -> None:
    """Compile into a temporary file and rename it, so that two processes at once do not disturb each other."""
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    os.close(handle)
    try:
        for machine in _MACHINE:
            command = [*compiler, *_FLAGS, *machine, "-o", unfinished, str(source), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                os.replace(unfinished, path)
                return
        raise RuntimeError(f"{shlex.join(command)} failed, leave fused off or set CC:\n{done.stderr[-2000:]}")
    finally:
        Path(unfinished).unlink(missing_ok=True)
