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
import torch

from entryclip.cli import main
from entryclip.lab.engine.files import checksum, write_sealed
from entryclip.lab.engine.printable import printable
from entryclip.lab.engine.reproduce import Options, reproduce
from entryclip.lab.engine.schema import BadFile
from entryclip.lab.engine.store import load_record, load_rows
from entryclip.lab.engine.sweep import sweep
from entryclip.lab.engine.units import first_units, read
from entryclip.lab.lm.data.manifest import hash_file, load_manifest, read_manifest
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


@pytest.fixture(scope="module")
def trained(shards, tmp_path_factory):
    """The folder of a finished run."""
    out = tmp_path_factory.mktemp("trained")
    Run(SETTINGS, shards, out, save_every=2).advance()
    return out


@pytest.fixture
def run_folder(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def refused(path, reads):
    """Return whether `reads` refuses the file; the message must be one line that names it."""
    try:
        reads()
    except BadFile as error:
        line = printable(str(error))
        assert str(path) in line
        assert len(line) < 600
        return True
    return False


def _plain(path, value):
    path.write_text(json.dumps(value))


def judge(path, value, reads, write=_plain, named=None):
    """Try every variant of a JSON file and return them; a message names the file, or the path `named`."""
    changes = list(hostile.variants(value))
    for change, variant in changes:
        write(path, variant)
        try:
            refused(named or path, reads)
        except Exception as error:
            pytest.fail(f"{path.name}, {change}: {type(error).__name__}: {error}")
    return changes


@pytest.mark.parametrize("content", hostile.BROKEN)
def test_broken_json_is_refused_wherever_it_is(made, shards, trained, tmp_path, content):
    for name, reads in (
        ("record.json", lambda: load_record(tmp_path)),
        ("manifest.json", lambda: read_manifest(tmp_path)),
        ("manifest.json", lambda: checkpoint.load(tmp_path)),
        ("record.json", lambda: checkpoint.read_sealed(tmp_path / "record.json")),
    ):
        (tmp_path / name).write_text(content)
        assert refused(tmp_path / name, reads)


def test_records(results):
    path = results / "operators" / "record.json"
    judge(path, json.loads(path.read_text()), lambda: load_record(path.parent))


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
        assert refused(path, lambda: load_rows(path.parent)) == bool(content)


def test_units(results):
    (unit,) = first_units(OPERATORS, OPERATORS.config.quick(), results / "operators")
    good = json.loads(unit.path.read_text())
    good.pop("checksum")
    good["rows"] = good["rows"][:2]
    judge(unit.path, good, lambda: read(unit), _seal)


def _seal(path, value):
    """Write a file with the right checksum, as one who knows the format can; without waiting for the disk."""
    seal = {"checksum": checksum(value)} if isinstance(value, dict) else {}
    path.write_text(json.dumps({**seal, **value} if seal else value))


def test_manifests_of_data(data):
    path = data / "manifest.json"
    good = json.loads(path.read_text())
    for name in ("shards", "request"):
        assert good[name]
    good["request"]["sources"] = good["request"]["sources"][:1]
    judge(path, good, lambda: _read_unfinished(data), named=data)


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


def test_manifests_of_checkpoints(run_folder):
    place = run_folder / "checkpoints" / "step_000004"
    good = json.loads((place / "manifest.json").read_text())
    good.pop("checksum")
    changes = judge(place / "manifest.json", good, lambda: checkpoint.load(place), _seal)
    assert len(changes) > 500


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": 10**9}, "step must be at most the 4 steps of the run, got 1000000000"),
        ({"sha256": {}}, r"sha256.model.safetensors is missing"),
        ({"rows": []}, "times must be one for each row"),
        ({"step": 3}, "batches.position must be the step, 3, got 4"),
    ],
)
def test_a_checkpoint_that_contradicts_itself(run_folder, change, words):
    place = run_folder / "checkpoints" / "step_000004"
    good = json.loads((place / "manifest.json").read_text())
    good.pop("checksum")
    write_sealed(place / "manifest.json", {**good, **change})
    with pytest.raises(BadFile, match=words):
        checkpoint.load(place)


def change_state(run_folder, change):
    """Replace the optimizer's state of the last checkpoint, with the right hashes."""
    place = run_folder / "checkpoints" / "step_000004"
    state = torch.load(place / "state.pt", weights_only=True)
    torch.save(change(state), place / "state.pt")
    manifest = json.loads((place / "manifest.json").read_text())
    manifest.pop("checksum")
    manifest["sha256"]["state.pt"] = hash_file(place / "state.pt")
    write_sealed(place / "manifest.json", manifest)
    return place


def without_a_moment(state):
    first = next(iter(state["state"].values()))
    first.popitem()
    return state


def with_a_moment_of_another_shape(state):
    first = next(each for each in state["state"].values() if "exp_avg" in each)
    first["exp_avg"] = torch.zeros(3)
    return state


@pytest.mark.parametrize(
    "change",
    [lambda state: {"state": {}}, without_a_moment, with_a_moment_of_another_shape],
    ids=["none", "one", "shape"],
)
def test_lost_moments_are_refused(run_folder, shards, change):
    place = change_state(run_folder, change)
    with pytest.raises(BadFile, match=rf"{place}/state.pt lacks \w+ of \w+"):
        Run(SETTINGS, shards, run_folder)


@pytest.mark.parametrize("state", [[], {}, {"state": 7}, torch.zeros(3)], ids=["list", "empty", "number", "tensor"])
def test_a_state_that_is_none_falls_back_to_the_checkpoint_before(run_folder, shards, state):
    change_state(run_folder, lambda _: state)
    said = []
    run = Run(SETTINGS, shards, run_folder, say=said.append)
    assert run.trainer.done == 2
    assert "state.pt is foreign: it holds no state of an optimizer; continuing from step_000002" in said[0]


def test_options_of_groups_are_the_settings_not_the_checkpoints(run_folder, shards):
    def hostile_groups(state):
        for group in state["param_groups"]:
            group["betas"] = "x"
        return state

    change_state(run_folder, hostile_groups)
    run = Run(SETTINGS, shards, run_folder)
    assert all(group.get("betas") != "x" for group in run.trainer.optimizer.param_groups)


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
