"""kill -9 and a full disk at random moments: a file of results is always the last one or the one before it, whole."""

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import entryclip
from entryclip.lab.engine.files import locked, read_sealed

# Writes growing files for ever, without torch: a process is there in a tenth of a second.
WRITER = """
import itertools, sys
from pathlib import Path
from entryclip.lab.engine.files import locked, write_sealed
path = Path(sys.argv[1])
with locked(path, wait=True):
    for i in itertools.count(int(sys.argv[2])):
        write_sealed(path, {"i": i, "rows": list(range(i % 50 * 400))})
        print(i, flush=True)
"""


def start(path, first, **options):
    environment = {"PYTHONPATH": str(Path(entryclip.__file__).parents[1]), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", WRITER, str(path), str(first)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options
    )


def test_a_file_survives_kills_at_random_moments(tmp_path):
    path, draw, first = tmp_path / "unit.json", random.Random(19), 0
    for _ in range(12):
        writer = start(path, first)
        writer.stdout.readline()  # it is at work
        time.sleep(draw.uniform(0, 0.03))
        writer.kill()
        said = writer.communicate()[0].split()
        found = read_sealed(path)["i"]
        assert found >= max(map(int, said), default=first)  # what was said to be written is there
        first = found + 1
    with locked(path, wait=False) as ours:
        assert ours  # a killed process holds no lock
    assert [each.name for each in tmp_path.iterdir() if each.suffix == ".tmp"] == []  # removed under the lock


def test_a_full_disk_keeps_the_file_before(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk here: {mounted.stderr.strip()}")
    try:
        said, error = start(disk / "unit.json", 1).communicate(timeout=60)
        assert "OSError: [Errno 28] no space to write" in error
        assert "make room and run the same command again" in error
        found = read_sealed(disk / "unit.json")
        assert found["i"] == int(said.split()[-1])
        assert shutil.disk_usage(disk).free > 0  # the half-written file is gone
    finally:
        subprocess.run(["umount", str(disk)], check=True)
