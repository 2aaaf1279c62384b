"""The study of fixed grids: what it runs, how it chooses, and what its claims rest on."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest

from entryclip.lab.engine.grid import single_values
from entryclip.lab.engine.provenance import config_hash
from entryclip.lab.lm.data.token_frequency import BANDS
from entryclip.lab.lm.train.run import Run
from entryclip.lab.lm.train.settings import Settings
from entryclip.lab.paper.rate_grid import STUDY
from entryclip.lab.paper.rate_grid.arms import parse_arm
from entryclip.lab.paper.rate_grid.at_the_end import NOT_MEASURED
from entryclip.lab.paper.rate_grid.bands import band_differences
from entryclip.lab.paper.rate_grid.study import Cell, RateGridConfig, RateGridRun, best_cells, next_units, units


def test_the_control_of_adamw_is_the_default():
    config = RateGridConfig()
    cells = set(config.cells())
    assert {Cell("adamw", None, lr, warmup) for lr in (0.008, 0.0113, 0.016) for warmup in (0, 50)} <= cells
    assert {Cell("post-smooth", 0.995, lr, 0) for lr in (0.0113, 0.016, 0.0226)} <= cells
    assert Cell("post-smooth-slope", 0.995, 0.0113, 0) in cells
    assert len(config.seeds_of("report")) == 10
    assert not set(config.seeds_of("report")) & set(config.seeds_of("tuning"))
    assert config.settings(Cell("adamw", None, 0.008, 50), 401).warmup == 50
    assert config.settings(Cell("adamw", None, 0.008, 50), 401).batch_tokens * config.steps > 2_000_000


def documented():
    """Return the config of each full command in docs/pretraining.md, by the folder that it names."""
    page = (Path(__file__).parents[3] / "docs" / "pretraining.md").read_text()
    variables = dict(re.findall(r'^(\w+)="([^"]*)"$', page, re.MULTILINE))
    lines = [line for line in page.splitlines() if line.startswith("entryclip reproduce rate-grid") and "--out" in line]
    found = {}
    for line in lines:
        for name, text in variables.items():
            line = line.replace(f"${name}", text)
        fields, folder = line.split("--set ")[1].split(" --out ")
        found[folder.split()[0]] = STUDY.configured(changes=single_values(STUDY, fields.split()))
    return found


def test_the_commands_of_the_page_are_grids():
    configs = documented()
    assert len(configs) == 11
    shorter = {"results/rate-grid-gpt2", "results/rate-grid-finetuning"}
    tokens = {name: config.steps * config.sequences * config.length for name, config in configs.items()}
    assert {name for name, count in tokens.items() if count < 1_990_000} == shorter
    for name, config in configs.items():  # the saved results are those of the commands
        if (record := Path(__file__).parents[3] / name / "rate-grid" / "record.json").exists():
            assert json.loads(record.read_text())["config_hash"] == config_hash("rate-grid", config), name
    muon = configs["results/rate-grid-muon"]
    assert {cell.lr for cell in muon.cells()} == {0.008, 0.016, 0.032}
    levels = {(arm.method, arm.level) for arm in muon.arms()}
    assert levels >= {("muon", None), ("normuon", None), ("muon-standardized", None), ("pre-hard", 0.995)}
    assert levels >= {("pre-smooth", level) for level in (0.98, 0.99, 0.999)}
    assert (len(levels), len(muon.seeds_of("report")), muon.report) == (7, 5, "best")
    assert {config.width for config in configs.values()} == {None, 64, 256}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("adam", "unknown method 'adam'"),
        ("pre-smooth@1.5", r"level is the quantile of pre-smooth, in \(0, 1\], got 1.5"),
        ("muon@0.9", "level is for methods that clip, muon does not"),
        ("muon/x", "'x' in 'muon/x' is no number, nor several joined by"),
        ("muon/0.1+0.1", "the rates of 'muon/0.1\\+0.1' must be one or more, each once"),
        ("adagc+tables", r"adagc acts on the tables anyway: leave out \+tables, got 'adagc\+tables'"),
        ("muon/0.1/0/0", r"a method is METHOD\[\+tables\]\[@LEVEL\]\[/RATES\[/WARMUPS\]\], got 'muon/0.1/0/0'"),
        ("muon+heads", "unknown method 'muon\\+heads'"),
    ],
)
def test_arms_that_are_refused(text, words):
    with pytest.raises(ValueError, match=words):
        parse_arm(text, (0.1,), (0,))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"methods": ()}, "methods must be one or more, each once"),
        ({"methods": ("adamw", "adamw/0.008")}, "two methods of the grid have a run in common"),
        ({"tuning_seeds": 0}, "tuning_seeds and seeds must be at least 1, got 0 and 10"),
        ({"warmup": 50}, "warmup is one of the grid's fields here: set warmups=50"),
        ({"warmups": (490,)}, "warmup must be below the 490 steps of the run, got 490"),
        ({"rates": (0.0,), "methods": ("adamw",)}, "lr must be a finite number above 0, got 0.0"),
    ],
)
def test_bad_configs(changes, words):
    with pytest.raises(ValueError, match=words):
        RateGridConfig(**changes)


def run(method, lr, seed, loss, *, stage="report", warmup=0, level=None, bands=None, tokens=9):
    at_the_end = NOT_MEASURED if bands is None else {**NOT_MEASURED, "band_tokens": [tokens] * 5, "band_losses": bands}
    return RateGridRun(
        **at_the_end,
        stage=stage,
        method=method,
        level=level,
        lr=lr,
        warmup=warmup,
        seed=seed,
        loss=loss,
        diverged=None if loss is not None else "training stopped",
        tokens=100,
        seconds=1.0,
        eval_steps=[0, 10],
        eval_losses=[8.0, 5.0],
    ).to_row()


def grid(losses, seeds=range(10, 15)):
    """Rows of a grid: the mean loss of each (method, rate) in the tuning and in the reported runs, with seed noise."""
    rows = []
    for (method, lr), (tuning, report) in losses.items():
        level = 0.99 if "smooth" in method else None
        rows += [run(method, lr, seed, tuning, stage="tuning", level=level) for seed in (1, 2)]
        noise = np.random.default_rng(round(1e6 * lr) + len(method)).normal(0, 0.001, len(seeds))
        rows += [
            run(method, lr, seed, report + seed + each, level=level) for seed, each in zip(seeds, noise, strict=True)
        ]
    return rows


def test_each_method_is_compared_at_the_best_that_its_tuning_chose():
    """The baseline's best in the tuning counts, though another of its cells ends lower in the reported runs."""
    rows = grid(
        {
            ("muon", 0.008): (3.0, 3.0),
            ("muon", 0.016): (2.9, 2.9),
            ("muon", 0.032): (3.1, 2.0),  # luck of the reported seeds
            ("pre-smooth", 0.016): (2.95, 2.8),
            ("pre-smooth", 0.032): (2.96, 2.7),
        }
    )
    assert best_cells(rows) == {
        ("muon", None): Cell("muon", None, 0.016, 0),
        ("pre-smooth", 0.99): Cell("pre-smooth", 0.99, 0.016, 0),
    }
    (claim,) = STUDY.claims(rows)
    assert claim.holds
    assert "final loss -0.1" in claim.measured
    assert "5 seeds" in claim.measured
    assert "Muon: best at rate 0.016, inside its grid" in claim.measured
    assert "Muon, smooth shrinkage: best at rate 0.016, the edge of its grid" in claim.measured


def test_only_common_seeds_are_compared_and_one_decides_nothing():
    base = grid({("adamw", 0.008): (3.0, 3.0)}, seeds=range(10, 15))
    other = grid({("post-smooth", 0.016): (2.0, 1.0)}, seeds=range(14, 19))
    (claim,) = STUDY.claims(base + other)
    assert not claim.holds
    assert "1 seed; not tested" in claim.measured


def test_a_method_that_diverged_wins_nothing_and_is_drawn():
    rows = grid({("adamw", 0.008): (3.0, 3.0), ("post-smooth", 0.008): (2.0, 2.0)})
    rows += [run("post-smooth", 0.016, 1, 1.0, stage="tuning", level=0.99)]
    rows += [run("post-smooth", 0.016, seed, None if seed == 12 else 1.0, level=0.99) for seed in range(10, 15)]
    (claim,) = STUDY.claims(rows)
    assert not claim.holds
    assert "a run diverged" in claim.measured
    (lines,) = STUDY.tables(rows).values()
    assert lines[-1]["reported"] == "diverged in 1 of 5"
    assert STUDY.figures(rows)


def test_claims_are_corrected_for_their_number():
    """Five methods of which each is as good as the baseline but for noise, and one that is better."""
    cells = {("muon", 0.016): (3.0, 3.0), ("pre-smooth", 0.016): (2.9, 2.9)}
    cells |= {(name, 0.016): (3.0, 3.0) for name in ("pre-hard", "muon-auto", "pre-auto", "muon-norm")}
    found = STUDY.claims(grid(cells))
    assert len(found) == 5
    assert all("Holm over 5 claims" in claim.measured for claim in found)
    assert [claim.holds for claim in found] == [True, False, False, False, False]


def test_the_best_alone_can_be_reported():
    config = dataclasses.replace(RateGridConfig.quick(), report="best", tuning_seeds=1)
    first = units(config)
    assert {piece["stage"] for piece in first} == {"tuning"}
    rows = [
        run(**{key: piece[key] for key in ("method", "lr", "seed", "stage", "warmup", "level")}, loss=piece["lr"])
        for piece in first
    ]
    assert {piece["method"] for piece in next_units(config, rows[:-1])} == {"adamw", "post-smooth", "muon"}
    assert next_units(config, rows[:3]) == []  # the last of AdamW's four may be its best
    more = next_units(config, rows)
    assert {piece["lr"] for piece in more if piece["method"] == "adamw"} == {0.005}
    assert len(more) == 4 * config.seeds
    assert next_units(RateGridConfig.quick(), rows) == []
    whole = units(RateGridConfig.quick())
    assert [piece["seed"] for piece in whole] == sorted(piece["seed"] for piece in whole)  # whole pairs first


def test_the_tables_can_be_clipped_too(shards):
    """An arm of its own, with AdamW as its baseline; it differs from the clip of the hidden matrices alone."""
    arms = ("adamw", "post-smooth", "post-smooth+tables")
    config = dataclasses.replace(RateGridConfig.quick(), data=str(shards), methods=arms, rates=(0.01,), warmups=(0,))
    settings = [config.settings(cell, 1) for cell in config.cells()]
    assert [each.method for each in settings] == ["adamw", "post-smooth", "post-smooth"]
    assert settings[1].clip_where is None
    assert "lm_head.weight" in settings[2].clip_where
    rows = [row for piece in units(config) for row in STUDY.run_unit(config, piece)]
    losses = {row["method"]: row["loss"] for row in rows if row["seed"] == config.first_seed}
    assert len(set(losses.values())) == 3
    assert [claim.claim.partition(" ends")[0] for claim in STUDY.claims(rows)] == [
        "AdamW, smooth shrinkage",
        "AdamW, smooth shrinkage, tables too",
    ]


def test_tables_have_no_stage_before_a_sign(shards):
    config = dataclasses.replace(RateGridConfig.quick(), data=str(shards), methods=("muon", "pre-smooth+tables"))
    piece = {"stage": "tuning", **config.cells()[-1]._asdict(), "seed": 1}
    with pytest.raises(ValueError, match="clip at the stage grad or post"):
        list(STUDY.run_unit(config, piece))


def test_bands_are_compared_over_common_seeds_at_the_best_cells():
    rows = [run("adamw", 0.1, 1, 3.0, stage="tuning"), run("post-smooth", 0.1, 1, 3.0, stage="tuning", level=0.99)]
    for seed in (10, 11, 12):
        rows.append(run("adamw", 0.1, seed, 3.0, bands=[1.0, 2.0, 3.0, 4.0 + seed, None]))
        rows.append(run("post-smooth", 0.1, seed, 3.0, level=0.99, bands=[1.0, 2.0, 3.0, 3.5 + seed, None]))
    rows.append(run("adamw", 0.1, 13, 3.0, bands=[9.0] * 5))  # a seed that the other does not have
    found = band_differences(rows)
    assert [each.band for each in found] == list(BANDS[:4])  # the last has no token
    assert [list(each.differences) for each in found] == [[0.0] * 3] * 3 + [[-0.5] * 3]
    assert found[0].unclipped == 1.0


def test_a_gain_on_rare_tokens_is_one_beyond_that_on_frequent_ones():
    def rows(tokens, rare):
        made = [run("adamw", 0.1, 1, 3.0, stage="tuning"), run("post-smooth", 0.1, 1, 3.0, stage="tuning", level=0.99)]
        for seed, noise in ((10, 0.0), (11, 0.01), (12, -0.01)):
            made.append(run("adamw", 0.1, seed, 3.0, bands=[1.0, 2.0, 3.0, 4.0, None], tokens=tokens))
            bands = [0.9 + noise, 2.0, 3.0, 4.0 - rare - noise, None]
            made.append(run("post-smooth", 0.1, seed, 3.0, level=0.99, bands=bands, tokens=tokens))
        return made

    _, claim = STUDY.claims(rows(5000, 0.3))
    assert claim.claim.endswith("on tokens with 1 to 10 occurrences per million than on those with over 1000")
    assert claim.holds
    assert "difference of the differences from no clip -0.2000 [" in claim.measured
    assert not STUDY.claims(rows(5000, 0.1))[1].holds  # it gains everywhere, and there no more
    assert len(STUDY.claims(rows(900, 0.3))) == 1  # too few tokens


def test_a_small_grid_end_to_end(shards):
    config = dataclasses.replace(RateGridConfig.quick(), data=str(shards), rates=(0.01,))
    rows = [row for piece in units(config) for row in STUDY.run_unit(config, piece)]
    assert len(rows) == len(config.cells()) * 3
    for row in rows:
        assert row["eval_steps"] == [0, 4, 7, 8]
        assert row["eval_losses"][-1] == row["loss"]
        assert row["tokens"] == 8 * 4 * 64
        assert sum(row["band_tokens"]) == 512
        by_band = zip(row["band_tokens"], row["band_losses"], strict=True)
        assert sum(n * loss for n, loss in by_band if n) / 512 == pytest.approx(row["loss"], rel=1e-5)
        assert row["raw_gain"] > 1.02  # the tiny model's gradients: rows and columns of different scale
        assert row["standardized_gain"] < row["raw_gain"]
        assert row["spike_score"] is None  # of 8 steps
    warm = {row["warmup"]: row["loss"] for row in rows if (row["method"], row["seed"]) == ("adamw", 402)}
    assert warm.keys() == {0, 2}
    assert warm[0] != warm[2]
    assert [claim.claim for claim in STUDY.claims(rows)] == [
        "AdamW, smooth shrinkage ends below AdamW, each at its best rate and warm-up",
        "Muon, smooth shrinkage ends below Muon, each at its best rate and warm-up",
    ]
    lines, bands, ends = STUDY.tables(rows).values()
    assert len(lines) == len(config.cells())
    assert sum(line["best"] == "yes" for line in lines) == 4
    assert [line["method"] for line in bands] == ["AdamW", "AdamW, smooth shrinkage", "Muon", "Muon, smooth shrinkage"]
    assert len(ends) == 4
    assert STUDY.figures(rows).keys() == {"rate_grid", "bands"}
    axes = STUDY.figures(rows)["rate_grid"].axes
    assert [axis.get_title() for axis in axes[:2]] == ["AdamW", "Muon"]


def test_all_runs_can_begin_with_the_weights_of_another_one(shards, tmp_path):
    """Fine-tuning. The weights are part of the data that names the results."""
    sizes = {"model": "tiny", "method": "adamw", "sequences": 4, "length": 64, "eval_tokens": 512}
    Run(Settings.quick(**sizes, steps=30), shards, tmp_path / "run").advance()
    plain = dataclasses.replace(RateGridConfig.quick(), data=str(shards), methods=("adamw/0.001/0",), steps=1)
    tuned = dataclasses.replace(plain, weights=str(tmp_path / "run"))
    (cold,), (warm,) = (list(STUDY.run_unit(config, units(config)[0])) for config in (plain, tuned))
    assert warm["eval_losses"][0] < cold["eval_losses"][0] - 0.5
    assert STUDY.data(plain).content != STUDY.data(tuned).content
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    (tmp_path / "run" / "record.json").write_text(json.dumps({**record, "complete": False}))
    with pytest.raises(ValueError, match="weights must be a finished run or one of its checkpoints"):
        STUDY.data(tuned)
    (place,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert dataclasses.replace(tuned, weights=str(place)).origin() == place
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        STUDY.data(dataclasses.replace(plain, weights=str(tmp_path)))


def test_spectra_is_compared_with_the_optimizer_whose_update_it_clips():
    rows = grid({("adamw", 0.1): (3.0, 3.0), ("spectra", 0.1): (2.9, 2.9)})
    (claim, *_) = STUDY.claims(rows)
    assert claim.claim == "SPECTRA ends below AdamW, each at its best rate and warm-up"
    assert claim.holds


def test_a_run_that_diverged_is_a_row_without_a_loss(shards):
    config = dataclasses.replace(RateGridConfig.quick(), data=str(shards))
    piece = {"stage": "tuning", "method": "adamw", "level": None, "lr": 1e30, "warmup": 0, "seed": 1}
    (row,) = STUDY.run_unit(config, piece)
    assert row["loss"] is None
    assert "training stopped at step" in row["diverged"]
    assert row["band_losses"] == []
    assert row["eval_steps"] == [0]


def test_a_line_joins_means_over_the_same_seeds():
    """The best alone was run with the reported seeds, whose losses are lower: the line must not dip for that."""
    rows = [run("adamw", lr, seed, loss, stage="tuning") for lr, loss in ((0.1, 3.0), (0.2, 2.9)) for seed in (1, 2)]
    rows += [run("adamw", 0.2, seed, 2.0) for seed in (10, 11)]
    line, reported, *_ = STUDY.figures(rows)["rate_grid"].axes[0].lines
    assert list(line.get_ydata()) == [3.0, 2.9]
    assert list(reported.get_ydata()) == [2.0]


def test_bands_of_a_few_tokens_are_not_drawn_beside_large_ones():
    rows = []
    for seed in (3, 4):
        for method, level, loss in (("adamw", None, 1.0), ("post-smooth", 0.99, 1.1)):
            made = run(method, 0.1, seed, 3.0, level=level, bands=[loss] * 5)
            made["band_tokens"] = [9000, 5000, 1000, 46, 1]
            rows += [made, run(method, 0.1, 1, 3.0, level=level, stage="tuning")]
    (axis,) = STUDY.figures(rows)["bands"].axes
    assert [label.get_text() for label in axis.get_xticklabels()] == ["over 1000", "100 to 1000", "10 to 100"]
