"""Checkpoints that others give us: refused by name, or right. `SETTINGS` and shards are as small as they can be."""

import json
import shutil

import hostile
import pytest
import torch

from entryclip.lab.engine.files import write_sealed
from entryclip.lab.engine.schema import BadFile
from entryclip.lab.lm.data.manifest import hash_file
from entryclip.lab.lm.train import checkpoint
from entryclip.lab.lm.train.run import Run
from entryclip.lab.lm.train.settings import Settings

SETTINGS = Settings.quick(steps=4, eval_every=2, eval_tokens=256, sequences=2, length=64)


@pytest.fixture(scope="module")
def trained(shards, tmp_path_factory):
    """The folder of a finished run."""
    out = tmp_path_factory.mktemp("trained")
    Run(SETTINGS, shards, out, save_every=2).advance()
    return out


@pytest.fixture
def run_folder(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def test_manifests_of_checkpoints(run_folder):
    place = run_folder / "checkpoints" / "step_000004"
    good = json.loads((place / "manifest.json").read_text())
    good.pop("checksum")
    changes = hostile.judge(place / "manifest.json", good, lambda: checkpoint.load(place), hostile.write_with_checksum)
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
