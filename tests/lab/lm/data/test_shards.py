import json
import re

import numpy as np
import pytest
from counting_shards import counting_shards

from entryclip.lab.lm.data.manifest import load_manifest
from entryclip.lab.lm.data.prepare import prepare
from entryclip.lab.lm.data.shards import Tokens, find_shards, read_shard, write_shard


def test_the_bytes_of_a_shard(tmp_path):
    path = tmp_path / "train_000001.bin"
    write_shard(path, np.array([1, 2, 50256], np.uint16))
    data = path.read_bytes()
    header = np.frombuffer(data[:1024], "<i4")
    assert header[:3].tolist() == [20240520, 1, 3]
    assert not header[3:].any()
    assert data[1024:] == b"\x01\x00\x02\x00\x50\xc4"
    assert read_shard(path).tolist() == [1, 2, 50256]
    assert isinstance(read_shard(path), np.memmap)


def change(index, value):
    def apply(data):
        header = np.frombuffer(data[:1024], "<i4").copy()
        header[index] = value
        return header.tobytes() + data[1024:]

    return apply


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: b"", "it has 0 bytes, a header alone 1024"),
        (lambda data: data[:1023], "it has 1023 bytes"),
        (lambda data: data[:-1], "10 tokens make 1044 bytes, it has 1043"),
        (lambda data: data + b"\0", "10 tokens make 1044 bytes, it has 1045"),
        (change(0, 20240801), "it starts with 20240801, not 20240520"),
        (change(1, 2), "version 2, this reads version 1"),
        (change(2, 11), "11 tokens make 1046 bytes, it has 1044"),
        (change(2, -1), "-1 tokens"),
        (lambda data: b"#" * 2000, "is not a shard of tokens"),
    ],
)
def test_damaged_and_foreign_files_are_named_and_refused(tmp_path, damage, words):
    path = counting_shards(tmp_path, [10]) / "train_000001.bin"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=f"{re.escape(str(path))} .*{words}"):
        Tokens.open(tmp_path, "train", vocabulary=100)


def test_only_tokens_are_written(tmp_path):
    for wrong in (np.arange(3), np.zeros((2, 2), np.uint16), np.zeros(0, np.uint16)):
        with pytest.raises(ValueError, match="takes a vector of uint16 tokens"):
            write_shard(tmp_path / "x.bin", wrong)
    assert not list(tmp_path.iterdir())


def test_shards_are_found_by_split_and_number(tmp_path):
    counting_shards(tmp_path, [1] * 11)
    counting_shards(tmp_path, [1], "fineweb_val", 0)
    (tmp_path / ".train_000002.bin.x.tmp").write_bytes(b"left behind")
    assert [path.name for path in find_shards(tmp_path, "val")] == ["fineweb_val_000000.bin"]
    assert [path.name[6:12] for path in find_shards(tmp_path, "train")] == [f"{i:06d}" for i in range(1, 12)]
    (tmp_path / "train_000004.bin").unlink()
    with pytest.raises(FileNotFoundError, match="lacks the train shard number 4"):
        find_shards(tmp_path, "train")
    counting_shards(tmp_path, [1], "other_val", 0)
    with pytest.raises(ValueError, match="mixes data sets"):
        find_shards(tmp_path, "val")


def test_no_shards(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no val shards in .*entryclip data prepare"):
        find_shards(tmp_path, "val")
    with pytest.raises(FileNotFoundError, match=r"no folder .*entryclip data prepare"):
        find_shards(tmp_path / "nowhere", "val")


def test_reading_over_the_borders_of_shards(tmp_path):
    tokens = Tokens.open(counting_shards(tmp_path, [5, 1, 7]), "train", vocabulary=13)
    for start in range(14):
        for stop in range(start, 14):
            assert tokens.read(start, stop).tolist() == list(range(start, stop))
    for start, stop in ((-1, 3), (3, 14), (5, 4)):
        with pytest.raises(IndexError, match="not within the 13"):
            tokens.read(start, stop)


def test_a_token_beyond_the_vocabulary_is_named(tmp_path):
    counting_shards(tmp_path, [5, 5])
    assert len(Tokens.open(tmp_path, "train", vocabulary=10)) == 10
    with pytest.raises(ValueError, match=r"train_000002.bin has token 8 at 3, beyond the vocabulary of 8"):
        Tokens.open(tmp_path, "train", vocabulary=8)


@pytest.fixture
def prepared(tmp_path):
    """Prepare 10 training shards of bytes, with a manifest."""
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": "some text"}) for _ in range(20)))
    prepare([tmp_path / "a.jsonl"], tmp_path / "out", tokenizer="bytes", shard_tokens=19)
    assert len(find_shards(tmp_path / "out", "train")) == 10
    return tmp_path / "out"


def spoil(path, token, keep=None):
    """Replace the last token of a shard without updating the manifest."""
    tokens = np.array(read_shard(path))[:keep]
    tokens[-1] = token
    write_shard(path, tokens)


def test_shards_of_a_manifest_are_read_through_by_one_process(prepared):
    path = prepared / "train_000002.bin"
    spoil(path, 60000)
    assert len(Tokens.open(prepared, "train", vocabulary=257, thorough=False)) == 190
    with pytest.raises(ValueError, match=r"train_000002.bin has token 60000 at 18, beyond the vocabulary of 257"):
        Tokens.open(prepared, "train", vocabulary=257)
    with pytest.raises(ValueError, match=r"train_000002.bin is damaged, its SHA-256 is another"):
        load_manifest(prepared)  # the full check of a whole folder
    (prepared / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"train_000002.bin has token 60000 at 18, beyond the vocabulary of 257"):
        Tokens.open(prepared, "train", vocabulary=257)


def test_a_shard_of_another_length_than_in_the_manifest_is_named(prepared):
    spoil(prepared / "train_000002.bin", 1, keep=5)
    with pytest.raises(ValueError, match=r"train_000002.bin has 5 tokens, by the manifest it had 19: fetch or prepare"):
        Tokens.open(prepared, "train", vocabulary=257)


def test_a_shard_that_the_manifest_does_not_know_is_refused(prepared):
    write_shard(prepared / "train_000011.bin", np.array([1, 2], np.uint16))  # perhaps of another tokenizer
    with pytest.raises(ValueError, match=r"train_000011.bin is not in the manifest, and may be of another tokenizer"):
        Tokens.open(prepared, "train", vocabulary=257)


def test_a_last_shard_that_is_gone_is_missed(prepared):
    (prepared / "train_000010.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"train_000010.bin is missing, the manifest lists it"):
        Tokens.open(prepared, "train", vocabulary=257)


def test_a_manifest_of_a_larger_vocabulary_proves_nothing(prepared):
    with pytest.raises(ValueError, match=r"train_000001.bin has token 256 at 0, beyond the vocabulary of 256"):
        Tokens.open(prepared, "train", vocabulary=256)
    assert len(Tokens.open(prepared, "train", vocabulary=50257)) == 190


@pytest.mark.parametrize("text", ["", "[]", '{"format": 1}', '{"format": 2}'])
def test_a_damaged_manifest_is_named(prepared, text):
    (prepared / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=r"manifest.json is damaged"):
        Tokens.open(prepared, "train", vocabulary=257)
