import os

import pytest

from entryclip import files


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
