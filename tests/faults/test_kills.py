"""kill -9 and a full disk at random moments: a file of results is always the last one or the one before it, whole."""

import os
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


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(entryclip.__file__).parents[1])}


def writer_file(folder):
    file = folder / "writer.py"
    file.write_text(WRITER)
    return file


def start(path, first):
    command = [sys.executable, str(writer_file(path.parent)), str(path), str(first)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=ENVIRONMENT, **pipes)


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


SCRIPT = """
mount -t tmpfs -o size=64k none {disk} || exit 77
{command} > {folder}/said 2> {folder}/error
cp {disk}/unit.json {folder}/kept.json
ls -A {disk} > {folder}/left
"""


def test_a_full_disk_keeps_the_file_before(tmp_path):
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare to mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    command = subprocess.list2cmdline([sys.executable, str(writer_file(tmp_path)), str(disk / "unit.json"), "1"])
    script = SCRIPT.format(disk=disk, folder=tmp_path, command=command)
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"cannot mount a small disk here: {done.stderr.strip()}")
    error = (tmp_path / "error").read_text()
    assert "OSError: [Errno 28] no space to write" in error
    assert "make room and run the same command again" in error
    assert read_sealed(tmp_path / "kept.json")["i"] == int((tmp_path / "said").read_text().split()[-1])
    assert ".tmp" not in (tmp_path / "left").read_text()  # the half-written file is gone
