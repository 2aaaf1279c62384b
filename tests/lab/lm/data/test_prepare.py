import hashlib
import json
import os
import signal
import subprocess
import sys

import pytest

from entryclip.cli import main
from entryclip.lab.lm.data.manifest import load_manifest
from entryclip.lab.lm.data.prepare import prepare
from entryclip.lab.lm.data.shards import Tokens, read_shard
from entryclip.lab.lm.data.tokenizer import bpe_tokenizer


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    for part in range(2):
        lines = [{"text": f"document {part} {i}: " + "the cat sat on the mat " * (i % 5)} for i in range(60)]
        (folder / f"{part}.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    return folder


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def expected(source, split, every=10):
    lines = [
        json.loads(line)["text"] for part in range(2) for line in (source / f"{part}.jsonl").read_text().split("\n")
    ]
    return [text for i, text in enumerate(lines) if (i % every == 0) == (split == "val")]


@pytest.mark.parametrize("shard_tokens", [64, 1000, 10**6])
def test_shards_hold_every_document_behind_a_separator(tmp_path, source, shard_tokens):
    manifest = prepare([source], tmp_path / "out", tokenizer="bytes", shard_tokens=shard_tokens, val_every=10)
    assert (manifest["vocabulary"], manifest["separator"]) == (257, 256)
    for split in ("train", "val"):
        tokens = Tokens.open(tmp_path / "out", split, vocabulary=257)
        found = tokens.read(0, len(tokens)).tolist()
        assert found == [t for text in expected(source, split) for t in [256, *text.encode()]]
        sizes = [shard["tokens"] for shard in manifest["shards"] if shard["split"] == split]
        assert set(sizes[:-1]) <= {shard_tokens}
        assert sum(sizes) == len(tokens)


def test_bpe_is_trained_on_the_training_documents_and_kept(tmp_path, source):
    manifest = prepare([source], tmp_path / "out", tokenizer="bpe:300", val_every=10)
    tokenizer = bpe_tokenizer((tmp_path / "out" / "tokenizer.json").read_text())
    assert manifest["vocabulary"] == tokenizer.vocabulary == 300
    tokens = Tokens.open(tmp_path / "out", "val", vocabulary=300)
    found = " ".join(map(str, tokens.read(0, len(tokens)))).split(str(tokenizer.separator))
    assert [tokenizer.decode([int(t) for t in part.split()]) for part in found[1:]] == expected(source, "val")
    for i in range(0, 60, 10):  # other validation documents, the same tokenizer
        lines = (source / "0.jsonl").read_text().split("\n")
        lines[i] = json.dumps({"text": "zyx" * 50})
        (source / "0.jsonl").write_text("\n".join(lines))
    prepare([source], tmp_path / "other", tokenizer="bpe:300", val_every=10)
    assert contents(tmp_path / "other")["tokenizer.json"] == contents(tmp_path / "out")["tokenizer.json"]


def test_the_tokenizer_of_other_shards(tmp_path, source):
    """Shards for fine-tuning: other text, in the tokens of the shards that a model was trained on."""
    first = prepare([source], tmp_path / "first", tokenizer="bpe:300", val_every=10)
    (tmp_path / "other.txt").write_text("the dog sat on the log")
    (tmp_path / "more.txt").write_text("and so on")
    texts = [tmp_path / "more.txt", tmp_path / "other.txt"]
    found = prepare(texts, tmp_path / "second", tokenizer_of=tmp_path / "first", val_every=2)
    assert found["request"]["tokenizer"] == "bpe:300"
    assert found["tokenizer_sha256"] == first["tokenizer_sha256"]
    tokenizer = bpe_tokenizer((tmp_path / "first" / "tokenizer.json").read_text())
    tokens = Tokens.open(tmp_path / "second", "train", vocabulary=300)
    assert tokenizer.decode(tokens.read(1, len(tokens)).tolist()) == "the dog sat on the log"
    assert prepare(texts, tmp_path / "second", tokenizer_of=tmp_path / "first", val_every=2) == found
    with pytest.raises(ValueError, match="was prepared with tokenizer_sha256 "):
        prepare(texts, tmp_path / "second", tokenizer="bpe:300", val_every=2)
    with pytest.raises(FileNotFoundError, match=r"no shards in .*nowhere: --tokenizer-of is the --out of"):
        prepare(texts, tmp_path / "fourth", tokenizer_of=tmp_path / "nowhere")
    assert prepare(texts, tmp_path / "bytes", tokenizer="bytes", val_every=2)["tokenizer_sha256"] is None
    again = prepare(texts, tmp_path / "third", tokenizer_of=tmp_path / "bytes", val_every=2)
    assert contents(tmp_path / "third") == contents(tmp_path / "bytes")
    assert again["vocabulary"] == 257


def test_the_manifest_holds_the_hashes(tmp_path, source):
    manifest = prepare([source], tmp_path / "out", tokenizer="bytes", shard_tokens=1000)
    assert load_manifest(tmp_path / "out") == manifest
    for shard in manifest["shards"]:
        assert hashlib.sha256((tmp_path / "out" / shard["name"]).read_bytes()).hexdigest() == shard["sha256"]
    for each in manifest["request"]["sources"]:
        data = (source / each["name"]).read_bytes()
        assert (each["bytes"], each["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())


KILLED = """
import os, signal, sys
from pathlib import Path
from entryclip.lab.lm.data import manifest, prepare

count = 0
real = manifest.write_json

def counted(path, value):
    global count
    count += 1
    if count == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)  # the shard is there, the manifest does not know it
    real(path, value)

manifest.write_json = counted
prepare.prepare([Path(sys.argv[1])], Path(sys.argv[2]), tokenizer="bpe:300", shard_tokens=150, val_every=10)
"""


def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(tmp_path, source):
    whole, out = tmp_path / "whole", tmp_path / "out"
    prepare([source], whole, tokenizer="bpe:300", shard_tokens=150, val_every=10)
    assert len(contents(whole)) > 12
    for at in (1, 2, 5, 4):  # counted from where the one before was killed
        done = subprocess.run([sys.executable, "-c", KILLED, source, out, str(at)], capture_output=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert contents(out) != contents(whole)
        with pytest.raises((ValueError, FileNotFoundError)):
            load_manifest(out)
    prepare([source], out, tokenizer="bpe:300", shard_tokens=150, val_every=10)
    assert contents(out) == contents(whole)


def test_stopped_it_does_not_encode_again_what_is_there(tmp_path, source, monkeypatch):
    class Stop(Exception):
        pass

    def stop(what, done, total):
        if (tmp_path / "out" / "train_000003.bin").exists():
            raise Stop

    monkeypatch.setattr("entryclip.lab.lm.data.encoding._CHUNK", 1000)  # so that it is stopped between two
    options = {"tokenizer": "bytes", "shard_tokens": 500, "val_every": 10}
    with pytest.raises(Stop):
        prepare([source], tmp_path / "out", **options, progress=stop)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.bin")}
    assert 3 <= len(kept) < len(prepare([source], tmp_path / "out", **options)["shards"])
    assert kept == {path: path.stat().st_mtime_ns for path in kept}


def test_a_finished_folder_is_left_as_it_is(tmp_path, source):
    prepare([source], tmp_path / "out", tokenizer="bytes")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    prepare([source], tmp_path / "out", tokenizer="bytes")
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}


def test_another_request_into_the_folder_is_refused(tmp_path, source):
    prepare([source], tmp_path / "out", tokenizer="bytes")
    before = contents(tmp_path / "out")
    for change, words in (
        ({"tokenizer": "bpe:300"}, "tokenizer bytes, now it is bpe:300"),
        ({"val_every": 3}, "val_every 50, now it is 3"),
        ({"shard_tokens": 7}, "shard_tokens 100000000, now it is 7"),
    ):
        with pytest.raises(ValueError, match=f"was prepared with {words}: choose another --out"):
            prepare([source], tmp_path / "out", **{"tokenizer": "bytes"} | change)
    with (source / "1.jsonl").open("a") as file:
        file.write('\n{"text": "more"}')
    with pytest.raises(ValueError, match=r"other sources \(1.jsonl has changed\)"):
        prepare([source], tmp_path / "out", tokenizer="bytes")
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("name", ["train_000001.bin", "manifest.json"])
def test_damage_is_named(tmp_path, source, name):
    prepare([source], tmp_path / "out", tokenizer="bytes")
    path = tmp_path / "out" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if name.endswith("bin") else 0] ^= 1
    path.write_bytes(data)
    for again in (
        lambda: prepare([source], tmp_path / "out", tokenizer="bytes"),
        lambda: load_manifest(tmp_path / "out"),
    ):
        with pytest.raises(ValueError, match=f"{name} is damaged"):
            again()
    if name.endswith("bin"):
        path.unlink()
        with pytest.raises(FileNotFoundError, match=f"{name} is missing"):
            load_manifest(tmp_path / "out")


def test_nothing_left_to_train_on(tmp_path):
    (tmp_path / "a.txt").write_text("one document")
    with pytest.raises(ValueError, match="no document is left for train"):
        prepare([tmp_path / "a.txt"], tmp_path / "out", tokenizer="bytes")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tokenizer": "gpt3"}, "tokenizer must be"),
        ({"val_every": 1}, "val_every must be at least 2.*got 1"),
        ({"shard_tokens": 0}, "shard_tokens must be 1 to 2147483647, got 0"),
        ({"shard_tokens": 2**31}, "shard_tokens must be 1 to"),
    ],
)
def test_refuses_before_it_reads(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        prepare([tmp_path / "nowhere"], tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path, source, capsys):
    out = tmp_path / "out"
    arguments = ["data", "prepare", str(source), "--tokenizer", "bytes", "--out", str(out), "--val-every", "10"]
    assert main(arguments) == 0
    train, val = (sum(len(text) + 1 for text in expected(source, split)) for split in ("train", "val"))
    said = f"data: {out}: {train:,} tokens to train on, {val:,} for validation, vocabulary 257"
    assert said in capsys.readouterr().out
    assert main(arguments) == 0
    assert main(["data", "prepare", str(tmp_path / "nowhere"), "--out", str(out)]) == 2
    assert "no file or folder" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main([*arguments[:-3], str(tmp_path / "file")]) == 2
    assert "is a file: choose a folder with --out" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_a_folder_that_cannot_be_written(tmp_path, source):
    (tmp_path / "out").mkdir(mode=0o500)
    assert main(["data", "prepare", str(source), "--tokenizer", "bytes", "--out", str(tmp_path / "out")]) == 2


def test_held_out_files_are_the_validation_data_alone(tmp_path):
    (tmp_path / "in").mkdir()
    for name, text in (("a", "aaaa"), ("b", "bbb"), ("c", "cc")):
        (tmp_path / "in" / f"{name}.txt").write_text(text)
    held = [tmp_path / "in" / "b.txt"]  # inside of the folder that is given, too
    manifest = prepare([tmp_path / "in"], tmp_path / "out", tokenizer="bytes", held_out=held)
    assert [(shard["split"], shard["tokens"]) for shard in manifest["shards"]] == [("val", 4), ("train", 5 + 3)]
    assert read_shard(tmp_path / "out" / "val_000000.bin")[1:].tolist() == list(b"bbb")
    assert prepare([tmp_path / "in"], tmp_path / "out", tokenizer="bytes", held_out=held) == manifest
    with pytest.raises(ValueError, match="was prepared with held_out 1, now it is None: choose another --out"):
        prepare([tmp_path / "in"], tmp_path / "out", tokenizer="bytes")
    with pytest.raises(ValueError, match="every file is held out: give texts to train on"):
        prepare(held, tmp_path / "new", tokenizer="bytes", held_out=[tmp_path / "in"])
