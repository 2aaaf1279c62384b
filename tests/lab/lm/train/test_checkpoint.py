import dataclasses
import json
import os
import pickle
import resource
import signal
import subprocess
import sys

import pytest
import torch

from entryclip.lab.engine.schema import BadFile
from entryclip.lab.lm.data.manifest import hash_file
from entryclip.lab.lm.model.config import GPTConfig
from entryclip.lab.lm.train import checkpoint
from entryclip.lab.lm.train.checkpoint import MANIFEST, STATE, WEIGHTS, Checkpoint
from entryclip.lab.lm.train.settings import Settings

CONTENT = {
    "weights": {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(3).bfloat16()},
    "optimizer": {"state": {"a": {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1, "params": ["a"]}]},
}


def record(step):
    """The record of a run of 100 steps with one row, as `Run` writes it."""
    settings = Settings(steps=100)
    return {
        **{"settings": dataclasses.asdict(settings), "versions": {}, "code": "", "data": "shards"},
        "config": dataclasses.asdict(GPTConfig.tiny()),
        **{"seconds": 1.0, "optimizer_seconds": 0.5, "times": [1.0], "losses": []},
        "rows": [{"step": step, "tokens": 0, "loss": None, "val_loss": 5.5, "lr": 0.1}],
        "batches": {"position": step, "sequences": 8, "length": 512, "seed": 1, "data": ""},
    }


def save(folder, step, **options):
    return checkpoint.save(folder, Checkpoint(step, record=record(step), **CONTENT), **options)


def test_round_trip(tmp_path):
    found = checkpoint.load(save(tmp_path, 7))
    assert found.step == 7
    assert [row["step"] for row in found.record["rows"]] == [7]
    for name, tensor in CONTENT["weights"].items():
        torch.testing.assert_close(found.weights[name], tensor, rtol=0, atol=0)
    assert found.optimizer == CONTENT["optimizer"]


def test_the_last_ones_stay(tmp_path):
    for step in (10, 20, 30):
        save(tmp_path, step, keep=2)
    assert sorted(os.listdir(tmp_path)) == ["step_000020", "step_000030"]
    for step in (40, 50):
        save(tmp_path, step, keep=0)
    assert len(os.listdir(tmp_path)) == 4


@pytest.mark.parametrize("name", [WEIGHTS, STATE, MANIFEST])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path, name, damage):
    save(tmp_path, 1)
    path = save(tmp_path, 2) / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data if damage == "flip" else data[:-9])
    said = []
    assert checkpoint.load_latest(tmp_path, said.append).step == 1
    if damage == "gone" and name == MANIFEST:  # as left by a process that was killed while it wrote
        assert not said
        checkpoint.remove_incomplete(tmp_path)
        assert os.listdir(tmp_path) == ["step_000001"]
    else:
        assert str(path) in said[0]
        assert "continuing from step_000001" in said[0]


def test_none_and_none_whole(tmp_path):
    assert checkpoint.load_latest(tmp_path / "no", print) is None
    (save(tmp_path, 1) / WEIGHTS).write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"no checkpoint in .* is whole \(.*model.safetensors is damaged.*remove the fol"
    ):
        checkpoint.load_latest(tmp_path, print)


def damage(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_damaged_one_gives_way_to_a_whole_one_of_its_step(tmp_path):
    damage(save(tmp_path, 2) / WEIGHTS)
    place = save(tmp_path, 2)
    assert checkpoint.load(place).step == 2
    before = (place / MANIFEST).stat().st_mtime_ns
    save(tmp_path, 2)  # a whole one stays as it is
    assert (place / MANIFEST).stat().st_mtime_ns == before


def test_a_damaged_later_one_pushes_no_whole_one_out(tmp_path):
    damage(save(tmp_path, 30) / STATE)
    save(tmp_path, 10, keep=1)
    save(tmp_path, 20, keep=1)
    assert sorted(os.listdir(tmp_path)) == ["step_000020", "step_000030"]
    assert checkpoint.load_latest(tmp_path, lambda line: None).step == 20


@pytest.mark.parametrize("large", ["weights", "optimizer"])
def test_a_full_disk_is_said_in_one_line_and_leaves_nothing(tmp_path, large):
    save(tmp_path, 1)
    content = {**CONTENT, large: {"a": torch.zeros(100_000)}}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # what a full disk is to one file
    try:
        with pytest.raises(OSError, match=r"no space to write .*step_000002.*: make room and run the same command"):
            checkpoint.save(tmp_path, Checkpoint(2, record={}, **content))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    left = [path.name for path in (tmp_path / "step_000002").iterdir()]
    assert left == ([STATE] if large == "weights" else [])
    assert checkpoint.load_latest(tmp_path, print).step == 1


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil",)


def test_a_hostile_checkpoint_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = save(tmp_path, 1)
    (place / STATE).write_bytes(pickle.dumps(Evil(), protocol=2))
    about = json.loads((place / MANIFEST).read_text())
    hashes = {**about["sha256"], STATE: hash_file(place / STATE)}
    (place / MANIFEST).unlink()
    del about["checksum"], about["sha256"]
    checkpoint.write_sealed(place / MANIFEST, {**about, "sha256": hashes})
    with pytest.raises(ValueError, match="step_000001 cannot be read"):
        checkpoint.load(place)
    assert not (tmp_path / "evil").exists()


def test_a_foreign_one_is_refused(tmp_path):
    place = save(tmp_path, 1)
    checkpoint.write_sealed(place / MANIFEST, {"format": 9, "sha256": {}})
    with pytest.raises(BadFile, match=r"manifest\.json is damaged: format must be 1, got 9"):
        checkpoint.load(place)


def test_the_last_of_a_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        checkpoint.find_latest(tmp_path)
    for step in (5, 10):
        save(tmp_path / "checkpoints", step)
    assert checkpoint.find_latest(tmp_path).name == "step_000010"
    assert checkpoint.find_latest(tmp_path / "checkpoints" / "step_000005").name == "step_000005"


WRITER = """
import json, sys, torch
from pathlib import Path
from entryclip.lab.lm.train import checkpoint
torch.set_num_threads(1)
content = {"weights": {"w": torch.zeros(300_000)}, "optimizer": {"state": {"w": {"m": torch.zeros(300_000)}}}}
record = json.loads(sys.argv[2])
for step in range(1, 100_000):
    record["batches"]["position"] = record["settings"]["steps"] = step
    checkpoint.save(Path(sys.argv[1]), checkpoint.Checkpoint(step, record=record, **content))
    print(step, flush=True)
"""


def command(folder):
    return [sys.executable, "-c", WRITER, str(folder), json.dumps(record(1))]


def test_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    for i in range(4):
        writer = subprocess.Popen(command(tmp_path / str(i)), stdout=subprocess.PIPE)
        for _ in range(2):
            writer.stdout.readline()
        try:
            writer.wait(timeout=0.005 * i)
        except subprocess.TimeoutExpired:
            writer.send_signal(signal.SIGKILL)
        told = [int(line) for line in writer.communicate()[0].split()]
        said = []
        found = checkpoint.load_latest(tmp_path / str(i), said.append)
        assert not said
        assert found.step >= max(told, default=2)
