"""Compile the C code of this package for this machine at first use, and keep the library for the next time.

The shared library lies in a folder of the user alone ($XDG_CACHE_HOME or ~/.cache, entryclip/kernels), under a name
made of the source, the compiler, the processor and its own checksum: another version, compiler or machine has another
file, and a damaged file is compiled again.
"""

import contextlib
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

from .private_folder import PrivateFolder, kernel_cache, private_folder

_FLAGS = ["-std=gnu11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"]
# In order of preference. clang knows no vector width; without OpenMP there is one thread.
_MACHINE = [["-march=native", "-mprefer-vector-width=512", "-fopenmp"], ["-march=native", "-fopenmp"], ["-fopenmp"], []]


@functools.cache
def library(source: Path) -> ctypes.CDLL:
    """Return the library compiled from this file; a RuntimeError says so where there is no C compiler."""
    compiler = _compiler()
    stem = f"{source.stem}-{_fingerprint(source, compiler)}"
    with contextlib.ExitStack() as stack:
        try:
            cache = stack.enter_context(kernel_cache())
            found = cache.find_library(stem)
        except (OSError, RuntimeError):  # no folder that is ours alone, or no home: compile for this process only
            return _compile_and_load(compiler, source, stem, None)
        return cache.load(found) if found else _compile_and_load(compiler, source, stem, cache)


def _compile_and_load(compiler: list[str], source: Path, stem: str, cache: PrivateFolder | None) -> ctypes.CDLL:
    """Compile in a temporary folder and load the library, from the cache if it can be kept there.

    The temporary folder goes at once: the library is in memory by then.
    """
    with tempfile.TemporaryDirectory(prefix="entryclip-") as path, private_folder(Path(path)) as folder:
        name = f"{stem}.so"
        _compile(compiler, source, folder.path / name)
        content = folder.read(name)
        if content is None:
            raise RuntimeError(f"{folder.path / name} is not the file that was compiled: set TMPDIR to a safe folder")
        if cache is not None:
            with contextlib.suppress(OSError):  # a full disk: the library serves this process all the same
                return cache.load(cache.keep_library(stem, content))
        return folder.load(name)


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


def _compile(compiler: list[str], source: Path, path: Path) -> None:
    """Compile with the first of the machine's sets of flags that the compiler takes."""
    for machine in _MACHINE:
        command = [*compiler, *_FLAGS, *machine, "-o", str(path), str(source), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, umask=0o077)
        if done.returncode == 0:
            return
    raise RuntimeError(f"{shlex.join(command)} failed, leave fused off or set CC:\n{done.stderr[-2000:]}")
