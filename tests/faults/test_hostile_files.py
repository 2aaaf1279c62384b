"""Files that others give us: whatever is in them, the answer is one line that names the file, or a right result.

Every part of every kind of file is removed and replaced in turn (`hostile.variants`). Some of these files are harmless:
then they are read. No other exception than `BadFile` may come out, and nothing may hang.
"""

import json
import os
import random
import re
import shutil

import hostile
import numpy as np
import pytest

from entryclip.cli import main
from entryclip.lab.engine.files import write_sealed
from entryclip.lab.engine.reproduce import Options, reproduce
from entryclip.lab.engine.schema import BadFile
from entryclip.lab.engine.store import load_record, load_rows
from entryclip.lab.engine.sweep import sweep
from entryclip.lab.engine.units import first_units, read
from entryclip.lab.lm.data.manifest import load_manifest, read_manifest
from entryclip.lab.lm.data.shards import write_shard
from entryclip.lab.lm.train import checkpoint
from entryclip.lab.lm.train.run import Run
from entryclip.lab.lm.train.settings import Settings
from entryclip.lab.paper import find
from entryclip.lab.report import write_page

OPERATORS = find("operators")
SETTINGS = Settings.quick(steps=4, eval_every=2, eval_tokens=256, sequences=2, length=64)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Results of a study and a sweep."""
    folder = tmp_path_factory.mktemp("made")
    reproduce(OPERATORS, folder, quick=True)
    sweep(OPERATORS, {"points": [7, 9]}, folder, Options(jobs=1))
    return folder


@pytest.fixture
def results(made, tmp_path):
    return shutil.copytree(made, tmp_path / "results")


@pytest.fixture
def data(shards, tmp_path):
    return shutil.copytree(shards, tmp_path / "data")


@pytest.mark.parametrize("content", hostile.BROKEN)
def test_broken_json_is_refused_wherever_it_is(tmp_path, content):
    for name, reads in (
        ("record.json", lambda: load_record(tmp_path)),
        ("manifest.json", lambda: read_manifest(tmp_path)),
        ("manifest.json", lambda: checkpoint.load(tmp_path)),
        ("record.json", lambda: checkpoint.read_sealed(tmp_path / "record.json")),
    ):
        (tmp_path / name).write_text(content)
        assert hostile.refused(tmp_path / name, reads)


def test_records(results):
    path = results / "operators" / "record.json"
    hostile.judge(path, json.loads(path.read_text()), lambda: load_record(path.parent))


def test_the_page_survives_every_record(results):
    (sweep_folder,) = (results / "sweeps").iterdir()
    for folder in (results / "operators", sweep_folder):
        path = folder / "record.json"
        good = path.read_text()
        for change, variant in random.Random(0).sample(list(hostile.variants(json.loads(good))), 40):
            path.write_text(json.dumps(variant))
            page = write_page(results)  # whatever is in the record: no exception
            assert page.path.exists(), change
        path.write_text(good)
    assert write_page(results).damaged == []


def test_rows(results):
    path = results / "operators" / "rows.jsonl"
    for content in (*hostile.BROKEN, '{"a": 1}\n[2]\n', "\n"):
        path.write_text(content)
        assert hostile.refused(path, lambda: load_rows(path.parent)) == bool(content)


def test_units(results):
    (unit,) = first_units(OPERATORS, OPERATORS.config.quick(), results / "operators")
    good = json.loads(unit.path.read_text())
    good.pop("checksum")
    good["rows"] = good["rows"][:2]
    hostile.judge(unit.path, good, lambda: read(unit), hostile.write_with_checksum)


def test_manifests_of_data(data):
    path = data / "manifest.json"
    good = json.loads(path.read_text())
    for name in ("shards", "request"):
        assert good[name]
    good["request"]["sources"] = good["request"]["sources"][:1]
    hostile.judge(path, good, lambda: _read_unfinished(data), named=data)


def _read_unfinished(folder):
    """Read a manifest and its shards; that a folder is not finished, or a shard not there, is said by name too."""
    try:
        load_manifest(folder)
    except (BadFile, RecursionError):
        raise
    except (ValueError, OSError) as error:
        raise BadFile(str(error)) from error


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("name", "/etc/train_000001.bin", "must be a bare file name"),
        ("name", "../train_000001.bin", "must be a bare file name"),
        ("name", "val_000001.bin", "must be a file of the split train"),
        ("sha256", {}, "must be a SHA-256"),
        ("tokens", 0, "must be a whole number from 1"),
    ],
)
def test_a_shard_of_a_manifest(data, capsys, field, value, words):
    path = data / "manifest.json"
    manifest = json.loads(path.read_text())
    next(shard for shard in manifest["shards"] if shard["split"] == "train")[field] = value
    path.write_text(json.dumps(manifest))
    assert main(["train", "--quick", "--data", str(data), "--out", str(data / "run")]) == 2
    said = capsys.readouterr().err
    assert f"{path} is damaged: shards[1].{field} {words}" in said
    assert said.count("\n") == 1


def test_a_vocabulary_beyond_what_shards_can_hold(data):
    manifest = json.loads((data / "manifest.json").read_text())
    (data / "manifest.json").write_text(json.dumps({**manifest, "vocabulary": 65537}))
    with pytest.raises(BadFile, match="vocabulary must be a whole number from 1 to 65536, got 65537"):
        read_manifest(data)


def test_tokens_beyond_the_vocabulary_are_refused_before_the_first_step(data, tmp_path):
    """The manifest is right about everything, the hash included, but for the tokens themselves."""
    path, manifest = data / "train_000001.bin", json.loads((data / "manifest.json").read_text())
    record = next(shard for shard in manifest["shards"] if shard["name"] == path.name)
    record["sha256"] = write_shard(path, np.full(record["tokens"], 300, np.uint16))
    (data / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"train_000001\.bin has token 300 at 0, beyond the vocabulary of 257"):
        Run(SETTINGS, data, tmp_path / "out")


def test_a_fifo_for_a_manifest_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(BadFile, match="is not a regular file: remove it"):
        read_manifest(tmp_path)


def test_escape_sequences_do_not_reach_the_terminal(results, capsys):
    path = results / "operators" / "record.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "seconds": "\x1b]0;owned\x07\u009b2J"}))
    assert main(["report", str(results)]) == 2
    printed = capsys.readouterr()
    assert "seconds must be a finite number" in printed.err
    assert not set("\x1b\x07\u009b") & set(printed.err + printed.out)
    assert "report: " in printed.out  # everything else is still shown


def test_rows_that_a_study_cannot_read_are_one_line(results, capsys):
    (unit,) = first_units(OPERATORS, OPERATORS.config.quick(), results / "operators")
    found = json.loads(unit.path.read_text())
    found.pop("checksum")
    write_sealed(unit.path, {**found, "rows": [{"nothing": 1}]})
    (results / "operators" / "record.json").unlink()
    assert main(["reproduce", "operators", "--quick", "--jobs", "1", "--out", str(results)]) == 2
    said = capsys.readouterr().err
    assert re.search(r"units holds rows that operators cannot read \(\w+Error: .*\): remove that folder", said)
    assert said.count("\n") == 1
