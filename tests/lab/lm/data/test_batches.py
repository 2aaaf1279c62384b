import numpy as np
import pytest
import torch
from counting_shards import counting_shards

from entryclip.lab.lm.data.batches import Batches
from entryclip.lab.lm.data.shards import Tokens, find_shards, write_shard


@pytest.mark.parametrize("seed", [None, 0])
def test_batches_hold_every_sequence_once_with_the_next_token_as_target(tmp_path, seed):
    tokens = Tokens(find_shards(counting_shards(tmp_path, [50, 31, 22]), "train"))
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
    tokens = Tokens(find_shards(counting_shards(tmp_path, [200, 200]), "train"))
    alone = Batches(tokens, sequences=4, length=8, seed=seed)
    parts = [Batches(tokens, sequences=4, length=8, seed=seed, rank=r, processes=processes) for r in range(processes)]
    for whole, *pieces in zip(alone, *parts, strict=True):
        for which in (0, 1):
            assert torch.equal(whole[which], torch.cat([piece[which] for piece in pieces]))


@pytest.mark.parametrize("seed", [None, 3])
def test_goes_on_where_it_was_also_on_another_number_of_processes(tmp_path, seed):
    tokens = Tokens(find_shards(counting_shards(tmp_path, [400]), "train"))
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
    tokens = Tokens(find_shards(counting_shards(tmp_path, [400]), "train"))
    first = {tuple(next(Batches(tokens, sequences=4, length=8, seed=seed))[0][:, 0].tolist()) for seed in range(5)}
    assert len(first) == 5


def test_what_has_changed_is_refused_by_name(tmp_path):
    tokens = Tokens(find_shards(counting_shards(tmp_path, [400]), "train"))
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
    tokens = Tokens(find_shards(counting_shards(tmp_path, [64]), "train"))
    with pytest.raises(ValueError, match=words):
        Batches(tokens, **options)
