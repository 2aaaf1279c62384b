"""Downloads from a local stand-in for the hub (hub.py), with small shards; commands run in their own processes."""

import hashlib
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from hub import COMMIT, Hub

from entryclip.lab.lm.data.fineweb import fetch, shard_names
from entryclip.lab.lm.data.manifest import load_manifest
from entryclip.lab.lm.data.prepare import prepare
from entryclip.lab.lm.data.shards import Tokens, write_shard


@pytest.fixture
def hub(tmp_path):
    """Serve a validation shard and three training shards of 5,000 tokens each."""
    files = {}
    for seed, name in enumerate(shard_names(3)):
        write_shard(tmp_path / name, np.random.default_rng(seed).integers(0, 50257, 5000).astype(np.uint16))
        files[name] = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
    with Hub(files) as served:
        yield served


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}


def command(out, hub, *more):
    environment = {"HF_ENDPOINT": hub.endpoint if hub else "http://127.0.0.1:9", "HF_HUB_DISABLE_TELEMETRY": "1"}
    arguments = [sys.executable, "-m", "entryclip", "data", "fineweb", "--out", str(out), *more]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(arguments, env=os.environ | environment, **options)


def test_whole_shards_and_a_manifest_that_the_others_read(tmp_path, hub):
    out, seen = tmp_path / "out", []
    manifest = fetch(out, shards=2, endpoint=hub.endpoint, progress=lambda *step: seen.append(step))
    assert contents(out) == {name: hub.files[name] for name in shard_names(2)}
    assert load_manifest(out) == manifest
    assert (manifest["vocabulary"], manifest["separator"], manifest["complete"]) == (50257, 50256, True)
    assert manifest["request"] | {"revision": COMMIT, "tokenizer": "gpt2"} == manifest["request"]
    for shard in manifest["shards"]:
        assert shard["tokens"] == 5000
        assert shard["sha256"] == hashlib.sha256(hub.files[shard["name"]]).hexdigest()
    assert len(Tokens.open(out, "train", vocabulary=50257)) == 10000
    assert len(Tokens.open(out, "val", vocabulary=50257)) == 5000
    assert ("fineweb_train_000002.bin (3 of 3)", 11024, 11024) in seen


def test_a_second_run_asks_for_nothing_and_a_larger_one_for_the_rest(tmp_path, hub):
    out = tmp_path / "out"
    fetch(out, shards=1, endpoint=hub.endpoint)
    times = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    hub.requests.clear()
    fetch(out, shards=1, endpoint=hub.endpoint)
    assert not hub.requests
    assert times == {path: path.stat().st_mtime_ns for path in out.iterdir()}
    manifest = fetch(out, shards=3, endpoint=hub.endpoint)
    assert hub.fetched() == shard_names(3)[2:]
    assert [shard["name"] for shard in manifest["shards"]] == shard_names(3)
    (out / shard_names(3)[1]).unlink()  # removed: fetched again
    assert fetch(out, shards=2, endpoint=hub.endpoint) == manifest
    assert load_manifest(out) == manifest


def test_a_connection_that_breaks_goes_on_at_the_byte(tmp_path, hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)  # 10 MB, of which our shards have none
    hub.cut[shard_names(1)[1]] = 3000, 2
    fetch(tmp_path / "out", shards=1, endpoint=hub.endpoint)
    assert contents(tmp_path / "out") == {name: hub.files[name] for name in shard_names(1)}
    assert hub.ranges == [(shard_names(1)[1], 3000), (shard_names(1)[1], 6000)]


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)]
)
def test_stopped_in_the_middle_it_goes_on_after_the_last_whole_shard(tmp_path, hub, number):
    out, stalling = tmp_path / "out", shard_names(3)[2]
    hub.stall.add(stalling)
    run = command(out, hub, "--shards", "3")
    assert hub.stalled.wait(60)
    run.send_signal(number)
    _, said = run.communicate(timeout=60)
    if number == signal.SIGKILL:
        assert run.returncode == -number
    else:
        assert run.returncode == 128 + number
        assert "stopped; what is finished is kept, and the same command goes on: entryclip data fineweb" in said
    assert sorted(path.name for path in out.glob("*.bin")) == sorted(shard_names(1))
    with pytest.raises(ValueError, match="is not finished: run the same `entryclip data` command again"):
        load_manifest(out)
    hub.stall.clear()
    hub.requests.clear()
    again = command(out, hub, "--shards", "3")
    printed, said = again.communicate(timeout=60)
    assert again.returncode == 0, said
    assert f"data: {out}: 15,000 tokens to train on, 5,000 for validation, vocabulary 50,257\n" in printed
    assert hub.fetched() == shard_names(3)[2:]
    assert contents(out) == hub.files  # and nothing is left behind
    assert load_manifest(out)["complete"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-1], "is damaged: 5000 tokens make 11024 bytes, it has 11023"),
        (lambda data: b"<html>not here</html>" * 100, "is not a shard of tokens"),
        (lambda data: b"", "is not a shard: it has 0 bytes"),
        (lambda data: data[:-2] + b"\xff\xff", "has token 65535 at 4999, beyond the vocabulary of 50257"),
    ],
)
def test_a_file_that_is_no_shard_gets_no_name(tmp_path, hub, damage, words):
    out, name = tmp_path / "out", shard_names(1)[1]
    good = hub.files[name]
    hub.files[name] = damage(good)
    with pytest.raises(ValueError, match=f"{name} {words}"):
        fetch(out, shards=1, endpoint=hub.endpoint)
    assert not (out / name).exists()
    hub.files[name] = good
    fetch(out, shards=1, endpoint=hub.endpoint)
    assert (out / name).read_bytes() == good


def test_a_flipped_bit_is_seen_by_the_hubs_hash(tmp_path, hub):
    name = shard_names(1)[0]
    hub.tags[name] = hashlib.sha256(b"other").hexdigest()
    with pytest.raises(ValueError, match=f"{name} was damaged on its way"):
        fetch(tmp_path / "out", shards=1, endpoint=hub.endpoint)
    assert not (tmp_path / "out" / name).exists()


def test_a_server_that_gives_no_hash_is_refused(tmp_path, hub):
    name = shard_names(1)[0]
    hub.tags[name] = "abc"
    with pytest.raises(ValueError, match=f"gives no SHA-256 for {name}, its ETag is 'abc'"):
        fetch(tmp_path / "out", shards=1, endpoint=hub.endpoint)
    assert not (tmp_path / "out" / name).exists()
    assert hub.fetched() == []


def test_a_revision_can_be_pinned(tmp_path, hub):
    out = tmp_path / "out"
    assert fetch(out, shards=1, revision=COMMIT, endpoint=hub.endpoint)["request"]["revision"] == COMMIT
    with pytest.raises(ValueError, match="revision must be a commit, 40 hexadecimal digits, got 'main'"):
        fetch(out, shards=1, revision="main", endpoint=hub.endpoint)
    with pytest.raises(ValueError, match=f"was begun with revision {COMMIT}, now it is {'f' * 40}"):
        fetch(out, shards=1, revision="f" * 40, endpoint=hub.endpoint)
    with pytest.raises(OSError, match="cannot be fetched"):
        fetch(tmp_path / "other", shards=1, revision="f" * 40, endpoint=hub.endpoint)


def test_no_network_is_one_line(tmp_path):
    run = command(tmp_path / "out", None)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 2
    assert said.count("\n") == 1
    assert said.startswith(
        "entryclip: fineweb_val_000000.bin of kjj0/fineweb10B-gpt2 cannot be fetched from http://127"
    )
    assert "check the network, or set HF_ENDPOINT to a mirror; the same command continues" in said


def test_a_server_without_the_file_is_named(tmp_path, hub):
    del hub.files[shard_names(3)[3]]
    with pytest.raises(
        OSError, match=f"{shard_names(3)[3]} of kjj0/fineweb10B-gpt2 cannot be fetched from {hub.endpoint}"
    ):
        fetch(tmp_path / "out", shards=3, endpoint=hub.endpoint)


def test_damage_in_the_folder_is_named(tmp_path, hub):
    out = tmp_path / "out"
    fetch(out, shards=1, endpoint=hub.endpoint)
    path = out / shard_names(1)[1]
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    for again in (lambda: fetch(out, shards=1, endpoint=hub.endpoint), lambda: load_manifest(out)):
        with pytest.raises(ValueError, match=f"{shard_names(1)[1]} is damaged, its SHA-256 is another"):
            again()


def test_other_data_in_the_folder_is_refused_both_ways(tmp_path, hub):
    (tmp_path / "a.jsonl").write_text('{"text": "validation"}\n{"text": "training"}')
    prepare([tmp_path / "a.jsonl"], tmp_path / "text", tokenizer="bytes")
    with pytest.raises(ValueError, match="holds other data, made by `entryclip data prepare`: choose another --out"):
        fetch(tmp_path / "text", shards=1, endpoint=hub.endpoint)
    fetch(tmp_path / "web", shards=1, endpoint=hub.endpoint)
    with pytest.raises(ValueError, match="holds other data, made by `entryclip data fineweb`: choose another --out"):
        prepare([tmp_path / "a.jsonl"], tmp_path / "web", tokenizer="bytes")


@pytest.mark.parametrize("shards", [0, 104])
def test_only_shards_that_there_are(tmp_path, shards):
    with pytest.raises(ValueError, match=f"shards must be 1 to 103, got {shards}"):
        fetch(tmp_path / "out", shards=shards)
    assert not (tmp_path / "out").exists()


def test_two_at_once(tmp_path, hub):
    hub.stall.add(shard_names(1)[0])
    run = command(tmp_path / "out", hub, "--shards", "1")
    assert hub.stalled.wait(60)
    with pytest.raises(OSError, match="another process is fetching into"):
        fetch(tmp_path / "out", shards=1, endpoint=hub.endpoint)
    run.kill()
    run.communicate()
