import json
import re

import numpy as np
import pytest
import torch

from entryclip.lab.lm.data.batches import Batches
from entryclip.lab.lm.data.manifest import load_manifest
from entryclip.lab.lm.data.prepare import prepare
from entryclip.lab.lm.data.shards import Tokens, find_shards, read_shard, write_shard


def shards(folder, sizes, split="train", first=1):
    """Shards that count on from each other."""
    start = 0
    for i, size in enumerate(sizes, first):
        write_shard(folder / f"{split}_{i:06d}.bin", np.arange(start, start + size).astype(np.uint16))
        start += size
    return folder


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
    path = shards(tmp_path, [10]) / "train_000001.bin"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=f"{re.escape(str(path))} .*{words}"):
        Tokens.open(tmp_path, "train", vocabulary=100)


def test_only_tokens_are_written(tmp_path):
    for wrong in (np.arange(3), np.zeros((2, 2), np.uint16), np.zeros(0, np.uint16)):
        with pytest.raises(ValueError, match="takes a vector of uint16 tokens"):
            write_shard(tmp_path / "x.bin", wrong)
    assert not list(tmp_path.iterdir())


def test_shards_are_found_by_split_and_number(tmp_path):
    shards(tmp_path, [1] * 11)
    shards(tmp_path, [1], "fineweb_val", 0)
    (tmp_path / ".train_000002.bin.x.tmp").write_bytes(b"left behind")
    assert [path.name for path in find_shards(tmp_path, "val")] == ["fineweb_val_000000.bin"]
    assert [path.name[6:12] for path in find_shards(tmp_path, "train")] == [f"{i:06d}" for i in range(1, 12)]
    (tmp_path / "train_000004.bin").unlink()
    with pytest.raises(FileNotFoundError, match="lacks the train shard number 4"):
        find_shards(tmp_path, "train")
    shards(tmp_path, [1], "other_val", 0)
    with pytest.raises(ValueError, match="mixes data sets"):
        find_shards(tmp_path, "val")


def test_no_shards(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no val shards in .*entryclip data prepare"):
        find_shards(tmp_path, "val")
    with pytest.raises(FileNotFoundError, match=r"no folder .*entryclip data prepare"):
        find_shards(tmp_path / "nowhere", "val")


def test_reading_over_the_borders_of_shards(tmp_path):
    tokens = Tokens.open(shards(tmp_path, [5, 1, 7]), "train", vocabulary=13)
    for start in range(14):
        for stop in range(start, 14):
            assert tokens.read(start, stop).tolist() == list(range(start, stop))
    for start, stop in ((-1, 3), (3, 14), (5, 4)):
        with pytest.raises(IndexError, match="not within the 13"):
            tokens.read(start, stop)


def test_a_token_beyond_the_vocabulary_is_named(tmp_path):
    shards(tmp_path, [5, 5])
    assert len(Tokens.open(tmp_path, "train", vocabulary=10)) == 10
    with pytest.raises(ValueError, match=r"train_000002.bin has token 8 at 3, beyond the vocabulary of 8"):
        Tokens.open(tmp_path, "train", vocabulary=8)


@pytest.fixture
def prepared(tmp_path):
    """10 shards of bytes to train on, with a manifest."""
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": "some text"}) for _ in range(20)))
    prepare([tmp_path / "a.jsonl"], tmp_path / "out", tokenizer="bytes", shard_tokens=19)
    assert len(find_shards(tmp_path / "out", "train")) == 10
    return tmp_path / "out"


def spoil(path, token, keep=None):
    """Another last token, behind the manifest's back."""
    tokens = np.array(read_shard(path))[:keep]
    tokens[-1] = token
    write_shard(path, tokens)


def test_shards_of_a_manifest_are_not_read_through(prepared):
    path = prepared / "train_000002.bin"
    spoil(path, 60000)
    assert len(Tokens.open(prepared, "train", vocabulary=257)) == 190
    with pytest.raises(ValueError, match=r"train_000002.bin is damaged, its SHA-256 is another"):
        load_manifest(prepared)  # that is the full check
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


@pytest.mark.parametrize("seed", [None, 0])
def test_batches_hold_every_sequence_once_with_the_next_token_as_target(tmp_path, seed):
    tokens = Tokens(find_shards(shards(tmp_path, [50, 31, 22]), "train"))
    batches = Batches(tokens, sequences=4, length=5, seed=seed)
    seen = []
    assert len(batches) == 5  # 20 sequences of (103 - 1) tokens
    for inputs, targets in batches:
        assert inputs.dtype == torch.int64
        assert inputs.shape == targets.shape == (4, 5)
        assert torch.equal(targets, inputs + 1)
        seen += inputs.flatten().tolist()
    assert sorted(seen) == list(range(100))
    assert (seen == sorted(seen)) == (seed is None)
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("processes", [2, 4])
def test_the_same_stream_on_any_number_of_processes(tmp_path, seed, processes):
    tokens = Tokens(find_shards(shards(tmp_path, [200, 200]), "train"))
    alone = Batches(tokens, sequences=4, length=8, seed=seed)
    parts = [Batches(tokens, sequences=4, length=8, seed=seed, rank=r, processes=processes) for r in range(processes)]
    for whole, *pieces in zip(alone, *parts, strict=True):
        for which in (0, 1):
            assert torch.equal(whole[which], torch.cat([piece[which] for piece in pieces]))


@pytest.mark.parametrize("seed", [None, 3])
def test_goes_on_where_it_was_also_on_another_number_of_processes(tmp_path, seed):
    tokens = Tokens(find_shards(shards(tmp_path, [400]), "train"))
    first = Batches(tokens, sequences=4, length=8, seed=seed)
    for _ in range(5):
        next(first)
    state = first.state_dict()
    rest = list(first)
    again = Batches(tokens, sequences=4, length=8, seed=seed)
    half = Batches(tokens, sequences=4, length=8, seed=seed, rank=1, processes=2)
    again.load_state_dict(state)
    half.load_state_dict(state)
    for expected, one, part in zip(rest, again, half, strict=True):
        assert torch.equal(expected[0], one[0])
        assert torch.equal(expected[0][2:], part[0])


def test_other_seeds_give_other_orders(tmp_path):
    tokens = Tokens(find_shards(shards(tmp_path, [400]), "train"))
    first = {tuple(next(Batches(tokens, sequences=4, length=8, seed=seed))[0][:, 0].tolist()) for seed in range(5)}
    assert len(first) == 5


def test_what_has_changed_is_refused_by_name(tmp_path):
    tokens = Tokens(find_shards(shards(tmp_path, [400]), "train"))
    state = Batches(tokens, sequences=4, length=8, seed=1).state_dict()
    for options in ({"sequences": 2}, {"length": 4}, {"seed": 2}):
        with pytest.raises(ValueError, match=f"have changed: {next(iter(options))} was"):
            Batches(tokens, **{"sequences": 4, "length": 8, "seed": 1} | options).load_state_dict(state)
    write_shard(tmp_path / "train_000001.bin", np.arange(1, 401).astype(np.uint16))
    other = Tokens(find_shards(tmp_path, "train"))
    with pytest.raises(ValueError, match="have changed: data was"):
        Batches(other, sequences=4, length=8, seed=1).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sequences": 8, "length": 8}, "too little data: one batch takes 65 tokens, there are 64"),
        ({"sequences": 3, "length": 2, "processes": 2}, "3 sequences do not divide over 2 processes"),
        ({"sequences": 2, "length": 2, "processes": 2, "rank": 2}, r"over 2 processes \(this is 2\)"),
        ({"sequences": 0, "length": 2}, "at least 1, got 0 and 2"),
        ({"sequences": 2, "length": 2, "position": 16}, "position must be a batch, 0 to 15, got 16"),
    ],
)
def test_refuses(tmp_path, options, words):
    tokens = Tokens(find_shards(shards(tmp_path, [64]), "train"))
    with pytest.raises(ValueError, match=words):
        Batches(tokens, **options)
