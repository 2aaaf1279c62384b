import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from entryclip.lab.engine import files


def test_writes_whole_and_leaves_no_traces(tmp_path):
    path = tmp_path / "new" / "folder" / "a.txt"
    files.write_text(path, "one")
    files.write_text(path, "zwei ü")
    assert path.read_text() == "zwei ü"
    assert os.listdir(path.parent) == ["a.txt"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_keeps_the_old_file(tmp_path, monkeypatch, step):
    path = tmp_path / "a.txt"
    files.write_text(path, "old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, step, fail)
    with pytest.raises(OSError, match="no space to write"):
        files.write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_json_refuses_what_json_cannot_say(tmp_path):
    files.write_json(tmp_path / "a.json", {"x": 1.5})
    with pytest.raises(ValueError, match="JSON compliant"):
        files.write_json(tmp_path / "a.json", {"x": float("nan")})
    assert (tmp_path / "a.json").read_text() == '{\n "x": 1.5\n}\n'


def test_a_sealed_file_is_read_back_or_refused_by_name(tmp_path):
    path = tmp_path / "a.json"
    files.write_sealed(path, {"x": 0.1, "y": [None, "ü"]})
    assert files.read_sealed(path) == {"x": 0.1, "y": [None, "ü"]}
    path.write_text(path.read_text().replace("0.1", "0.2"))
    with pytest.raises(ValueError, match=r"a\.json is damaged: its checksum"):
        files.read_sealed(path)
    path.write_text(json.dumps({"x": 1}))
    with pytest.raises(ValueError, match=r"a\.json is foreign: it has no checksum"):
        files.read_sealed(path)


SOURCE = str(Path(files.__file__).parents[3])
HOLD = """
import sys, time
from pathlib import Path
sys.path.insert(0, {source!r})
from entryclip.lab.engine import files
with files.locked(Path({path!r}), wait=False) as ours:
    print(ours, flush=True)
    time.sleep(60)
"""


def test_a_lock_ends_with_its_process_however_that_ends(tmp_path):
    path = tmp_path / "a.json"
    code = HOLD.format(source=SOURCE, path=str(path))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "True\n"
        with files.locked(path, wait=False) as ours:
            assert not ours
        holder.kill()
    with files.locked(path, wait=False) as ours:
        assert ours  # a killed holder holds nothing
    assert os.listdir(tmp_path) == []


def test_a_file_over_the_limit_is_said_and_leaves_the_old_one(tmp_path):
    """RLIMIT_FSIZE stands in for a disk without space; the real thing is in test_runner.py."""
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    code = f"""
import resource, sys
from pathlib import Path
sys.path.insert(0, {SOURCE!r})
from entryclip.lab.engine import files
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
files.write_bytes(Path({str(path)!r}), bytes(2000))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"no space to write {path}: make room and run the same command again" in done.stderr
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]
