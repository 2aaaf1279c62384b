"""The pretraining study: how it tunes, how it counts savings, and a small run of it."""

import dataclasses
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from entryclip.lab.engine.provenance import config_hash
from entryclip.lab.engine.reproduce import Options, reproduce_all
from entryclip.lab.engine.store import load_record, load_rows
from entryclip.lab.lm.data.prepare import prepare
from entryclip.lab.paper.pretraining import STUDY
from entryclip.lab.paper.pretraining.savings import Curves, crossing, curves, difference, restricted, saving
from entryclip.lab.paper.pretraining.search import Trial, at_edge, best, edges_in_words, next_trial, trials_of
from entryclip.lab.paper.pretraining.study import HEADLINE, POST, PRE, PretrainingConfig

RESULTS = Path(__file__).parents[3] / "results"


def searched(method, loss, count, rates=(2e-3, 4e-3, 8e-3), level=None):
    """The trials of a method whose loss is a known function."""
    trials = [Trial(lr, level, loss(lr, level)) for lr in rates]
    while len(trials) < count:
        lr, chosen = next_trial(method, trials)
        trials.append(Trial(lr, chosen, loss(lr, chosen)))
    return trials


@pytest.mark.parametrize("optimum", [2.5e-4, 1e-3, 4e-3, 3e-2])
def test_the_search_walks_to_an_optimum_off_the_grid(optimum):
    trials = searched("adamw", lambda lr, level: math.log(lr / optimum) ** 2, 8)
    found = best(trials).lr
    assert optimum / 1.5 < found < optimum * 1.5
    assert min(t.lr for t in trials) < found < max(t.lr for t in trials)  # not at an edge
    assert len({(t.lr, t.level) for t in trials}) == 8


def test_the_search_tries_the_other_levels_at_the_best_rate():
    trials = searched("post-smooth", lambda lr, q: math.log(lr / 4e-3) ** 2 + abs(q - 0.999), 5, level=0.995)
    assert [(t.lr, t.level) for t in trials[3:]] == [(4e-3, 0.99), (4e-3, 0.999)]
    assert best(trials)[:2] == (4e-3, 0.999)


@pytest.mark.parametrize(("optimum", "edge"), [(1e-4, True), (4e-3, False), (1, True)])
def test_a_best_rate_at_the_edge_is_known(optimum, edge):
    assert at_edge(searched("adamw", lambda lr, level: math.log(lr / optimum) ** 2, 4)) == edge


def test_the_threshold_of_spectra_is_searched_beyond_its_levels():
    trials = searched("spectra", lambda lr, c: math.log(lr / 4e-3) ** 2 + math.log(c / 200) ** 2, 14, level=10.0)
    assert best(trials)[:2] == (4e-3, 270.0)
    assert {trial.level for trial in trials} >= {3.0, 10.0, 30.0, 90.0, 270.0}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([(1, 10, 3.0), (2, 10, 2.0)], ["best rate at the edge", "level 10 alone was tried"]),
        ([(1, 10, 3.0), (2, 10, 2.0), (4, 10, 3.0), (2, 30, 1.9)], ["best level at the edge"]),
        ([(1, 10, 3.0), (2, 10, 2.0), (4, 10, 3.0), (2, 30, 2.1), (2, 3, 2.1)], []),
    ],
)
def test_claims_say_what_lies_at_the_edge(settings, words):
    trials = [Trial(lr, level, loss) for lr, level, loss in settings]
    assert edges_in_words("spectra", trials) == words
    rows = report_rows("pre-smooth", (1.0, 1.1)) + report_rows("spectra", (2.0, 2.2))
    common = {"stage": "tuning", "method": "spectra", "last": True}
    rows += [{**common, "lr": each.lr, "level": each.level, "val_loss": each.loss} for each in trials]
    (claim,) = STUDY.claims(rows)
    assert (f"SPECTRA: {', '.join(words)}" in claim.measured) == bool(words)
    assert ("SPECTRA:" in claim.measured) == bool(words)


def test_a_run_that_diverged_never_wins():
    trials = searched("adamw", lambda lr, level: math.inf if lr > 3e-3 else 3 + lr, 5)
    assert best(trials).lr < 3e-3


TOKENS = np.linspace(0, 100, 11)


def made(offsets, shift=0.0):
    """Curves 10 - tokens / 20, each with an offset; `shift` tokens ahead."""
    losses = np.array([10 - (TOKENS + shift) / 20 + offset for offset in offsets])
    return Curves(list(range(len(offsets))), TOKENS, losses, np.ones(len(offsets)))


def test_a_method_ten_tokens_ahead_saves_a_tenth():
    seeds = [0.0, 0.01, -0.01]  # paired: what a seed does to one it does to the other
    found = saving(made(seeds), made(seeds, shift=10))
    assert found == pytest.approx((0.1, 0.1, 0.1))
    assert difference(made(seeds), made(seeds, shift=10)) == pytest.approx((-0.5, -0.5, -0.5))


def test_a_method_behind_does_not_reach_the_level():
    assert saving(made([0.0, 0.0]), made([0.0, 0.0], shift=-10)) == (-math.inf, -math.inf, -math.inf)


def test_intervals_widen_with_the_spread_and_cover_no_difference():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        base, other = made(rng.normal(0, 0.05, 5)), made(rng.normal(0, 0.05, 5))
        low, high = difference(base, other)[1:]
        covered += low <= 0 <= high
    assert covered >= 180  # 95 % expected: fewer than 180 with probability 1e-3


def report_rows(method, finals):
    """Rows of runs whose loss falls from 10 at once to 8.5 (9 without a clip), and to its final value in the end."""
    middle = 9.5 if method == "adamw" else 8.5
    return [
        {"stage": "report", "method": method, "seed": seed, "tokens": tokens, "val_loss": loss, "seconds": 1.0}
        for seed, final in enumerate(finals)
        for tokens, loss in ((0, 10.0), (50, middle), (100, final))
    ]


@pytest.mark.parametrize(("finals", "holds"), [((8.4, 5.0), False), ((8.4, 8.41), True)])
def test_a_saving_whose_loss_interval_spans_0_does_not_hold(finals, holds):
    rows = report_rows("adamw", (9.0, 9.0)) + report_rows("post-smooth", finals)
    found = curves(rows)
    assert saving(found["adamw"], found["post-smooth"]).low > 0.5  # with any of the seeds
    assert (difference(found["adamw"], found["post-smooth"]).high < 0) == holds
    (claim,) = STUDY.claims(rows)
    assert claim.claim.startswith("Smooth shrinkage saves tokens on AdamW")
    assert claim.holds == holds


def test_claims_go_by_the_losses_and_are_corrected_for_their_number():
    """The same runs beside two more claims: what held alone at p = .02 holds no longer."""
    finals = (8.7, 8.9, 8.8, 8.65)
    rows = report_rows("adamw", (9.0,) * 4) + report_rows("post-smooth", finals)
    assert STUDY.claims(rows)[0].holds
    more = report_rows("post-hard", (9.0, 8.5, 8.7, 9.1)) + report_rows("muon", (8.5, 8.5, 8.5, 8.5))
    found = STUDY.claims(rows + more + report_rows("pre-smooth", (8.5, 8.6, 8.4, 8.5)))
    assert [claim.holds for claim in found] == [False, False, False]
    assert all("Holm over 3 claims" in claim.measured for claim in found)


def test_one_seed_decides_nothing():
    rows = report_rows("adamw", (9.0,)) + report_rows("post-smooth", (5.0,))
    (claim,) = STUDY.claims(rows)
    assert not claim.holds
    assert "-4.0000, no interval (1 seed; not tested" in claim.measured
    trial = {"stage": "tuning", "level": None, "last": True, "val_loss": 5.0}
    moved = STUDY.claims(
        [*rows, {**trial, "method": "adamw", "lr": 1e-3}, {**trial, "method": "post-smooth", "lr": 2e-3}]
    )[-1]
    assert "from 0.001 to 0.002" in moved.measured
    assert not moved.holds


def test_the_table_compares_over_common_seeds():
    """Two methods with the same losses, one of them on fewer seeds, differ from the baseline by the same there."""
    base = [{**row, "lr": 1e-3, "level": None} for row in report_rows("adamw", (9.0, 9.1, 9.2))]
    whole = [{**row, "method": "post-smooth"} for row in base]
    for row in whole:
        row["val_loss"] -= 0.5 if row["seed"] < 2 else 0.2
    fewer = [{**row, "method": "post-smooth-rms"} for row in whole if row["seed"] < 2]
    (lines,) = STUDY.tables(base + whole + fewer).values()
    assert lines[1]["less the baseline's, common seeds"] == lines[2]["less the baseline's, common seeds"]
    assert lines[1]["less the baseline's"] != lines[2]["less the baseline's"]
    assert [line["seeds"] for line in lines] == [3, 3, 2]
    assert all(line["final loss, common seeds"].endswith("(2)") for line in lines)
    assert set(restricted(curves(base + fewer))["adamw"].seeds) == {0, 1}


def test_seeds_are_paired_by_number():
    base, other = made([0.0, 1.0, 2.0]), made([0.0, 1.0])
    assert difference(base, other).value == 0
    shuffled = Curves([2, 0], TOKENS, other.losses[[1, 0]] + [[1.0], [0.0]], np.ones(2))
    assert difference(base, shuffled).value == pytest.approx(0)
    with pytest.raises(ValueError, match="no seed in common"):
        difference(base, Curves([7], TOKENS, other.losses[:1], np.ones(1)))


def test_the_figure_compares_over_the_seeds_both_have():
    def run(method, seed, curve):
        common = {"stage": "report", "method": method, "seed": seed, "seconds": 1.0}
        return [{**common, "tokens": tokens, "val_loss": loss} for tokens, loss in zip(TOKENS, curve, strict=True)]

    losses = made([0.0, 1.0]).losses  # a second seed that only the baseline has, and which is worse
    rows = [{"stage": "tuning", "method": "adamw", "lr": 1e-3, "level": None, "last": True, "val_loss": 5.0}]
    rows += run("adamw", 1, losses[0]) + run("adamw", 2, losses[1])
    rows += run("post-smooth", 1, made([0.0], shift=10).losses[0])
    last = STUDY.figures(rows)["nano-gpt-result"].axes[-1]
    assert [text.get_text() for text in last.get_legend().get_texts()] == [
        "AdamW",
        "AdamW, smooth shrinkage: 1.111",
        "without clipping, in the end: 5.000",
    ]
    ends = {line.get_label(): line.get_ydata()[-1] for line in last.lines}
    assert ends["AdamW, smooth shrinkage: 1.111"] - ends["AdamW"] == pytest.approx(-0.5)


def diverging(method, slope, end, seeds=(1, 2, 3)):
    """Rows of runs with losses 5 - slope * tokens that diverge after `end` tokens (100: they do not)."""
    common = {"stage": "report", "method": method, "lr": 1e-3, "level": None, "seconds": 1.0}
    for seed in seeds:
        for tokens in range(0, end + 1, 10):
            yield {**common, "seed": seed, "tokens": tokens, "val_loss": 5 - slope * tokens + seed / 1000}
        if end < 100:
            yield {**common, "seed": seed, "tokens": end + seed, "val_loss": None}


@pytest.mark.parametrize("whole", [(), (3,)], ids=["all seeds", "two of three"])
def test_a_method_that_diverged_wins_no_comparison(whole):
    lost = tuple({1, 2, 3} - set(whole))
    rows = [*diverging("adamw", 0.01, 100), *diverging("post-smooth", 0.02, 80, lost)]
    rows += [*diverging("post-smooth", 0.02, 100, whole), *diverging("post-hard", 0.009, 100)]
    found = STUDY.claims(rows)
    assert [claim.holds for claim in found] == [False, False]
    assert found[0].measured.startswith("saving none")
    assert "final loss a run diverged (3 seeds; not tested, Holm over 2 claims 1)" in found[0].measured
    (lines,) = STUDY.tables(rows).values()
    assert lines[1]["final loss, common seeds"] == f"diverged in {len(lost)} of 3"
    axis = STUDY.figures(rows)["nano-gpt-result"].axes[1]
    assert "AdamW, smooth shrinkage: diverged" in [text.get_text() for text in axis.get_legend().get_texts()]


def test_against_a_baseline_that_diverged_nothing_is_saved():
    rows = [*diverging("adamw", 0.01, 80), *diverging("post-smooth", 0.02, 100)]
    (claim,) = STUDY.claims(rows)
    assert not claim.holds
    assert claim.measured.startswith("saving a run of the baseline diverged")
    assert STUDY.figures(rows)


def test_crossing():
    assert crossing(TOKENS, np.full(11, 3.0), 2.0) == math.inf
    assert crossing(TOKENS, np.full(11, 1.0), 2.0) == 0
    assert crossing(TOKENS, 10 - TOKENS / 20, 7.25) == pytest.approx(55)


def test_the_study_has_all_methods_and_enough_seeds():
    config = PretrainingConfig()
    assert config.methods == POST + PRE
    assert config.settings("muon", lr=1e-3, level=None, seed=1).batch_tokens * config.steps >= 2_000_000
    for method in config.methods:
        assert len(config.seeds_of(method)) == (5 if method in HEADLINE else 3)
        assert config.seed not in config.seeds_of(method)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"methods": ("adam",)}, "unknown method 'adam'"),
        ({"rates": ()}, "rates must be one or more, each once"),
        ({"methods": ("muon", "muon")}, "methods must be one or more, each once"),
        ({"trials": 1}, "trials must be at least the 2 rates to begin with, got 1"),
        ({"tuning_steps": 0}, "tuning_steps must be at least 1, got 0"),
        ({"seeds": 0}, "seeds must be at least 1, got 0 and 5"),
        ({"warmup": 245}, "warmup must be below the 245 steps of the run, got 245"),
        ({"width": 100}, "width must be a multiple of 64, the size of a head, got 100"),
    ],
)
def test_bad_configs(changes, words):
    with pytest.raises(ValueError, match=words):
        PretrainingConfig(**changes)


def test_warm_up_schedule_and_width_are_fields():
    config = PretrainingConfig(warmup=50, schedule="wsd", floor=0.1, width=256, clip_where=("*", "embed*"))
    for settings in (
        config.settings("post-smooth", lr=1e-3, level=None, seed=1),
        config.tuning_settings("post-smooth", lr=1e-3, level=None, seed=1),
    ):
        assert (settings.warmup, settings.schedule, settings.floor) == (50, "wsd", 0.1)
        assert settings.config(4096, 0).width == 256
        assert settings.clip_where == ("*", "embed*")
    assert config.settings("adamw", lr=1e-3, level=None, seed=1).clip_where is None  # nothing to clip


@pytest.mark.parametrize("name", ["pretraining-small", "pretraining-controls/adamw-decay"])
def test_saved_rows_are_of_this_config(name):
    """A field that is added later must not make the rows of days unusable."""
    record = load_record(RESULTS / name / "pretraining")
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in record.config.items()}
    assert record.config_hash == config_hash("pretraining", PretrainingConfig(**fields))


@pytest.fixture(scope="module")
def study(shards, tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    changes = {"data": str(shards), "methods": ("adamw", "post-smooth"), "steps": 12, "eval_every": 4, "trials": 3}
    changes |= {"tuning_steps": 8}
    options = Options(quick=True, jobs=1, changes={**changes, "eval_tokens": 512})
    assert not reproduce_all([STUDY], folder, options)
    return folder, options


def test_every_method_gets_the_same_trials_and_other_seeds(study):
    rows = load_rows(study[0] / "pretraining")
    for method in ("adamw", "post-smooth"):
        tuned = {(r["lr"], r["level"]) for r in rows if r["method"] == method and r["stage"] == "tuning"}
        assert len(tuned) == 3
        assert {stage: max(r["step"] for r in rows if r["stage"] == stage) for stage in ("tuning", "report")} == {
            "tuning": 8,
            "report": 12,
        }
        top = best(trials_of(method, rows))
        reported = {(r["lr"], r["level"], r["seed"]) for r in rows if r["method"] == method and r["stage"] == "report"}
        assert reported == {(top.lr, top.level, seed) for seed in (101, 102)}
    starts = [r["val_loss"] for r in rows if r["step"] == 0]
    assert starts == pytest.approx([math.log(384)] * 4, abs=1e-4)  # the tuning looks at the end alone


def test_claims_figures_and_table_come_from_the_rows(study):
    record = load_record(study[0] / "pretraining")
    assert [claim.claim[:40] for claim in record.claims] == [
        "Smooth shrinkage saves tokens on AdamW (",
        "The best learning rate of AdamW moves up",
    ]
    reported, tuned = record.tables.values()
    assert [line["method"] for line in reported] == ["AdamW", "AdamW, smooth shrinkage"]
    rows = load_rows(study[0] / "pretraining")
    assert reported[0]["final loss, common seeds"].startswith(f"{curves(rows)['adamw'].final.mean():.4f}")
    trials = trials_of("post-smooth", rows)
    assert sorted(tuned[1]["tried"].split(", ")) == sorted(f"{trial.lr:g} at {trial.level:g}" for trial in trials)
    assert tuned[1]["loss"] == f"{best(trials).loss:.4f}"
    for figure in STUDY.captions:
        assert (study[0] / "pretraining" / f"{figure}.png").stat().st_size > 10_000


def test_the_same_command_again_has_nothing_to_do_and_a_lost_unit_is_made_again(study):
    folder, options = study
    lines = []
    options = dataclasses.replace(options, say=lines.append)
    assert not reproduce_all([STUDY], folder, options)
    assert lines == [f"pretraining: nothing to do, {folder / 'pretraining'} is complete"]
    rows = load_rows(folder / "pretraining")
    lost = sorted((folder / "pretraining" / "units").glob("*.json"))[0]
    lost.unlink()
    (folder / "pretraining" / "record.json").unlink()
    assert not reproduce_all([STUDY], folder, options)
    assert lost.exists()
    again = load_rows(folder / "pretraining")
    assert [{**row, "seconds": 0} for row in again] == [{**row, "seconds": 0} for row in rows]


def test_rows_of_other_data_are_not_mixed_in(tmp_path):
    def prepared(line):
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": f"{line} {i}" * 20}) for i in range(200)))
        prepare([tmp_path / "a.jsonl"], tmp_path / "data", tokenizer="bytes", val_every=4)

    sizes = {"steps": 2, "tuning_steps": 2, "eval_every": 2, "eval_tokens": 256, "trials": 1, "headline_seeds": 1}
    changes = {"data": str(tmp_path / "data"), "methods": ("adamw",), "rates": (0.01,), **sizes}
    options = Options(quick=True, jobs=1, changes=changes)
    prepared("some text")
    assert not reproduce_all([STUDY], tmp_path / "out", options)
    prepared("other text")
    with pytest.raises(
        ValueError, match=r"was made by other data than is in .*data now: use --stale recompute or keep"
    ):
        reproduce_all([STUDY], tmp_path / "out", options)
    (tmp_path / "out" / "pretraining" / "record.json").unlink()
    with pytest.raises(ValueError, match="1 finished units were made by other data"):
        reproduce_all([STUDY], tmp_path / "out", options)


def test_divergence_is_a_row_without_a_loss(shards):
    config = dataclasses.replace(PretrainingConfig.quick(), data=str(shards), eval_tokens=512)
    unit = {"stage": "tuning", "method": "adamw", "lr": 1e30, "level": None, "seed": 1}
    *_, last = STUDY.run_unit(config, unit)
    assert last["last"]
    assert last["val_loss"] is None
    assert "training stopped at step" in last["diverged"]
    assert trials_of("adamw", [last]) == [Trial(1e30, None, math.inf)]
