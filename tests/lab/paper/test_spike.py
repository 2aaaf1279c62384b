"""The spike replay: one start, the same batches, what stands out, and what its rows are counted as."""

import dataclasses
import math

import pytest
import torch

from entryclip.lab.lm.train.divergence import Diverged
from entryclip.lab.lm.train.trainer import Trainer
from entryclip.lab.paper.spike import STUDY
from entryclip.lab.paper.spike.corruption import BATCH_CORRUPTIONS, CorruptedBatches
from entryclip.lab.paper.spike.replays import comparisons
from entryclip.lab.paper.spike.study import SpikeConfig, SpikeHistory, SpikeLoss, run_unit, units
from entryclip.lab.paper.spike_score import spike_score


@pytest.fixture(scope="module")
def config(shards):
    """Two starts on AdamW and one on Muon, one seed."""
    methods = ("adamw", "post-smooth", "adamw-auto", "muon")
    return dataclasses.replace(SpikeConfig.quick(), data=str(shards), methods=methods, before=25, after=14, seeds=1)


@pytest.fixture(scope="module")
def rows(config):
    return [row for piece in units(config) for row in run_unit(config, piece)]


def losses(rows, method, corruption="random"):
    found = [row for row in SpikeLoss.from_rows(rows) if (row.method, row.corruption) == (method, corruption)]
    return {row.step: row.loss for row in found}


def test_all_methods_start_from_the_same_checkpoint_and_see_the_same_batches(config, rows):
    starts = config.starts()
    assert starts == {"adamw": ["adamw", "post-smooth"], "adamw-auto": ["adamw-auto"], "muon": ["muon"]}
    for start, methods in starts.items():
        history = [row.step for row in SpikeHistory.from_rows(rows) if row.start == start]
        assert history == list(range(-25, 0))
        for corruption in config.corruptions:
            first = losses(rows, start, corruption)
            assert sorted(first) == list(range(14))
            for method in methods:
                assert losses(rows, method, corruption)[0] == first[0]  # the first corrupted batch's: no step yet
    assert losses(rows, "post-smooth")[2] != losses(rows, "adamw")[2]
    assert losses(rows, "adamw")[0] != losses(rows, "adamw", "shuffled")[0]


def test_methods_that_judge_by_the_past_have_one_of_their_own():
    published = ("adagc", "zclip", "stable-adamw", "spam", "stable-spam", "spectral-clipping", "normuon")
    starts = SpikeConfig(methods=("adamw", "post-hard", "spectra", "muon", "pre-smooth", *published)).starts()
    assert starts.pop("adamw") == ["adamw", "post-hard", "spectra"]
    assert starts.pop("muon") == ["muon", "pre-smooth"]
    assert starts == {method: [method] for method in published}


def test_the_corrupted_batches_spike(rows):
    """Random tokens cannot be predicted: their loss is more than 1 nat above that of the text before."""
    before, found = [row.loss for row in SpikeHistory.from_rows(rows) if row.start == "adamw"], losses(rows, "adamw")
    assert min(found[step] for step in range(4)) > max(before[-5:]) + 1
    assert {row.step for row in SpikeLoss.from_rows(rows) if row.corrupted} == {0, 1, 2, 3}


class Counted:
    """Batches of two sequences that count up, as the trainer's do."""

    position = 0

    def __next__(self):
        self.position += 1
        tokens = torch.arange(6).reshape(2, 3) + self.position
        return tokens, tokens + 1


def test_only_the_chosen_batches_are_corrupted_and_the_same_way_each_time():
    for name, corruption in BATCH_CORRUPTIONS.items():
        runs = [CorruptedBatches(Counted(), corruption, 1, 2, 1000, seed=seed) for seed in (5, 5, 6)]
        first, again, other = ([next(run) for _ in range(4)] for run in runs)
        plain = [next(batches) for batches in [Counted()] for _ in range(4)]
        assert all(torch.equal(a, b) for x, y in zip(first, again, strict=True) for a, b in zip(x, y, strict=True))
        assert [torch.equal(x[1], y[1]) for x, y in zip(first, plain, strict=True)] == [True, False, False, True], name
        assert not torch.equal(first[1][1], other[1][1])
    assert torch.equal(first[1][0], plain[1][0])  # shuffled: the tokens stay
    assert torch.equal(first[1][1].flatten().sort().values, plain[1][1].flatten())


def test_random_tokens_are_drawn_from_the_whole_vocabulary():
    few = torch.zeros(4, 500, dtype=torch.long)
    for drawn in BATCH_CORRUPTIONS["random"](few, few, 1000, torch.Generator().manual_seed(0)):
        assert 950 < drawn.max() < 1000


def test_the_attention_window_does_not_shrink_at_the_checkpoint(config, monkeypatch):
    windows = []
    step = Trainer.step
    monkeypatch.setattr(Trainer, "step", lambda trainer: windows.append(trainer.window) or step(trainer))
    piece = {"start": "adamw", "methods": "adamw", "seed": 1}
    list(run_unit(dataclasses.replace(config, corruptions=("random",)), piece))
    assert len(windows) == config.before + config.after
    assert windows == sorted(windows)
    assert windows[0] < windows[-1]


def test_a_run_that_diverges_before_the_corrupted_batches_counts_as_diverged(config, monkeypatch):
    def diverge(trainer):
        raise Diverged(trainer.done, "")

    monkeypatch.setattr(Trainer, "step", diverge)
    rows = list(run_unit(config, {"start": "adamw", "methods": "adamw+post-smooth", "seed": 1}))
    assert [(row["method"], row["loss"]) for row in rows] == 2 * [("adamw", None), ("post-smooth", None)]
    assert all(math.isnan(each.less_plain().value) and each.score(7.0) == 100 for each in comparisons(rows))


def test_the_entry_is_the_largest_of_its_matrix(rows):
    (entry,) = [row for row in rows if row["kind"] == "entry"]
    (matrix,) = [row for row in rows if row["kind"] == "matrix"]
    values = matrix["values"]
    assert values[matrix["row"]][matrix["column"]] == max(map(max, values))
    assert entry["name"].startswith("blocks.")
    assert entry["name"] in entry["text"]


def test_claims_figures_and_table_come_from_the_rows(rows):
    claims = STUDY.claims(rows)
    assert len(claims) == 2 * 4
    assert not any(claim.holds for claim in claims)  # one seed has no interval
    assert claims[0].claim == "random tokens, AdamW: the loss is higher after the corrupted batches"
    assert "not tested, Holm over 4 such comparisons 1" in claims[1].measured
    assert STUDY.figures(rows).keys() == STUDY.captions.keys()
    ((_, lines),) = STUDY.tables(rows).items()
    assert [line["method"] for line in lines[:3]] == ["AdamW", "AdamW, smooth shrinkage", "AdamW, auto (gradient)"]


def replayed(rises, *, length=14):
    """Rows of AdamW and one clip whose clean losses after the corrupted batches are 1 + rise, by seed."""
    rows = []
    for seed, by_method in rises.items():
        rows += [
            SpikeHistory(start="adamw", seed=seed, step=i - 12, loss=1 + 0.1 * (i % 2)).to_row() for i in range(12)
        ]
        for method, rise in by_method.items():
            run = {"start": "adamw", "base": "adamw", "method": method, "corruption": "random", "seed": seed}
            last = 5 if rise is None else length
            for step in range(last):
                loss = None if rise is None and step == last - 1 else 5.0 if step < 4 else 1.05 + (rise or 0)
                rows.append(SpikeLoss(**run, step=step, loss=loss, corrupted=step < 4).to_row())
    return rows


def test_a_clip_is_judged_on_the_seeds_it_shares_with_no_clip():
    rises = {1: {"adamw": 0.4, "post-smooth": 0.1}, 2: {"adamw": 0.5, "post-smooth": 0.21}, 3: {"adamw": 0.6}}
    plain, clipped = comparisons(replayed(rises))
    assert plain.rise().value == pytest.approx(0.5)
    assert [each.seed for each in clipped.replays] == [1, 2]
    less = clipped.less_plain()
    assert less.value == pytest.approx((-0.3 - 0.29) / 2)
    assert less.high < 0
    assert [claim.holds for claim in STUDY.claims(replayed(rises))] == [True, True]
    both = {seed: {**own, "post-hard": own["adamw"] - 0.1 * seed} for seed, own in rises.items()}
    _, smooth_claim, hard_claim = STUDY.claims(replayed(both))
    assert "p = 0.011, Holm over 2 such comparisons 0.022" in smooth_claim.measured
    assert smooth_claim.holds
    assert "p = 0.074, Holm over 2 such comparisons 0.074" in hard_claim.measured
    assert not hard_claim.holds
    assert plain.score(3.0) == 20  # two of ten: then the window itself has spikes, and its deviation is large


def test_a_run_that_diverged_is_a_spike_and_no_clip_wins_by_it():
    _, clipped = comparisons(replayed({seed: {"adamw": 0.4, "post-smooth": None} for seed in (1, 2)}))
    assert math.isnan(clipped.less_plain().value)
    assert clipped.score(7.0) == 100
    assert [claim.holds for claim in STUDY.claims(replayed({1: {"adamw": None, "post-smooth": 0.1}}))] == [False, False]


def test_the_spike_score_counts_values_far_from_the_running_mean():
    before = [1.0, 2.0] * 25  # mean 1.5, standard deviation .5
    assert spike_score(before, [5.0], 7.0) == 100
    assert spike_score(before, [4.99], 7.0) == 0
    assert spike_score(before, [-2.0], 7.0) == 100  # in either direction
    assert spike_score(before, [1.5, 1.5, 1.5, 9.0], 7.0) == 25
    assert spike_score([100.0, *before], [5.0], 7.0) == 100  # only the last 50 count
    assert spike_score([1.0] * 50, [1.0, 1.0], 7.0) == 0  # a constant has no spikes
    with pytest.raises(ValueError, match="two values before and one after, got 1 and 0"):
        spike_score([1.0], [], 7.0)


def test_bad_configs():
    for name, value, least in (("after", 10, 14), ("before", 9, 10), ("corrupted", 0, 1), ("seeds", 0, 1)):
        with pytest.raises(ValueError, match=f"{name} must be at least {least}, got {value}"):
            SpikeConfig(**{name: value})
    with pytest.raises(ValueError, match="choose one or more of random, shuffled, each once"):
        SpikeConfig(corruptions=("zeros",))
    with pytest.raises(ValueError, match="methods on muon are compared with muon: add it"):
        SpikeConfig(methods=("adamw", "pre-smooth"))
