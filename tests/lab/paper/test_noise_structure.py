"""The noise study: what is probed and clipped, and how the claims are judged from known rows."""

import copy
import dataclasses

import pytest

from entryclip.lab.lm.train.run import Run
from entryclip.lab.paper.noise_structure import STUDY
from entryclip.lab.paper.noise_structure.claims import final_losses
from entryclip.lab.paper.noise_structure.clipped_parameters import clipped_parameters
from entryclip.lab.paper.noise_structure.study import NoiseStructureConfig


@pytest.fixture(scope="module")
def config(shards):
    sizes = {"steps": 16, "stages": (4, 16), "samples": 12, "directions": 2, "clipped_steps": 4, "eval_tokens": 256}
    return dataclasses.replace(NoiseStructureConfig.quick(), data=str(shards), length=32, seeds=1, **sizes)


@pytest.fixture(scope="module")
def rows(config):
    found = [row for unit in STUDY.units(config) for row in STUDY.run_unit(config, unit)]
    return found + [row for unit in STUDY.next_units(config, found) for row in STUDY.run_unit(config, unit)]


def test_every_hidden_matrix_is_probed_at_every_stage(config, rows):
    found = {(row["step"], row["matrix"]) for row in rows if row["kind"] == "matrix"}
    names = {name for _, name in found}
    assert len(names) == 20  # of the tiny model: 3 layers with 4 in attention, 4 with 2 in the MLP
    assert found == {(step, name) for step in config.stages for name in names}
    shown = [row for row in rows if row["kind"] == "shown"]
    assert [row["step"] for row in shown] == list(config.stages)
    for row in shown:
        assert row["matrix"] == config.shown
        assert len(row["largest"]) == len(row["sigma"]) == len(row["r_hat"]) >= 5
        assert sum(row["count"]) <= 64 * 64 * len(row["sigma"])


def test_the_halves_are_all_hidden_parameters_once_and_in_the_order_of_r_hat(rows):
    found = clipped_parameters(rows)
    assert set(found) == {"none", "all", "high", "low"}
    assert sorted(found["high"] + found["low"]) == list(found["all"])
    assert not found["none"]
    assert abs(len(found["high"]) - len(found["low"])) <= 1
    made = copy.deepcopy([row for row in rows if row["kind"] == "matrix"])
    for row in made:
        row["r_hat"] = [5.0 if "mlp" in row["matrix"] else 0.1, 1.0]
    assert all("mlp" in name for name in clipped_parameters(made)["high"])


def test_with_advice_for_some_there_are_arms_for_it(rows):
    made = copy.deepcopy([row for row in rows if row["kind"] == "matrix"])
    for row in made:
        if row["matrix"] == "blocks.1.attn.qkv_w.v":
            row["verdict"] = "spikes"
    found = clipped_parameters(made)
    assert found["advised"] == ("blocks.1.attn.qkv_w",)
    assert sorted(found["advised"] + found["not advised"]) == list(found["all"])


def test_no_clip_is_the_plain_optimizer_and_all_is_the_method(config, rows):
    final = final_losses(rows)
    assert set(final) == {"post-smooth-rms", "pre-smooth"}
    for method, baseline in (("post-smooth-rms", "adamw"), ("pre-smooth", "muon")):
        for arm, name in (("none", baseline), ("all", method)):
            settings = config.settings(name, seed=2, steps=config.clipped_steps)
            assert final[method][arm] == {2: Run(settings, config.folder()).advance()[-1]["val_loss"]}
        assert len({loss for losses in final[method].values() for loss in losses.values()}) == 4


def test_claims_follow_the_rows(rows):
    """R-hat far below 1 at first and above later, in every matrix, and each entry carrying half of sigma_1."""
    made = copy.deepcopy(rows)
    for row in made:
        if row["kind"] == "matrix":
            late = row["step"] == 16
            row |= {"r_hat": [5.0, 50.0] if late else [0.01, 0.02], "low": [0.5, 0.5], "high": [2.0, 2.0]}
            row |= {"index": 2.0 if late else 6.0, "spiked": 0.9, "spikes": 5, "spearman": 0.95, "relative": 0.9}
            row |= {"raw_gain": 9.0, "standardized_gain": 1.01, "standardized_spiked": 0.5}
            row |= {"standardized_r_hat": [5.0, 1.0], "standardized_high": [2.0, 2.0]}
        if row["kind"] == "clipped":
            row["val_loss"] = {"none": 3.0, "all": 2.9, "high": 2.8, "low": 2.95}[row["arm"]]
    twins = [{**row, "seed": 3} for row in made if row["kind"] == "clipped"]
    assert all(claim.holds for claim in STUDY.claims(made + twins))
    even = {"r_hat": [1.0, 1.0]}
    for row in made:
        if row["kind"] == "matrix":
            row |= even | {"index": 4.0, "spiked": 0.0, "spikes": 0, "spearman": 0.1, "relative": 0.1}
            row |= {"raw_gain": 1.0, "standardized_gain": 1.5, "standardized_spiked": 0.0}
            row |= {"standardized_r_hat": [1.0, 1.0]}
        if row["kind"] == "clipped":
            row["val_loss"] = 3.0
    twins = [{**row, "seed": 3} for row in made if row["kind"] == "clipped"]
    assert not any(claim.holds for claim in STUDY.claims(made + twins))


def test_a_claim_about_the_noise_holds_where_it_holds_in_every_run(rows):
    other = [{**copy.deepcopy(row), "seed": 2} for row in rows if row["kind"] == "matrix"]
    claim = "With the scales of rows and columns divided out, the median gain is at most 1.02"
    for gain, holds in ((1.01, True), (1.5, False)):
        made = copy.deepcopy(rows)
        for row in made:
            if row["kind"] == "matrix":
                row["standardized_gain"] = 1.0
        for row in other:
            row["standardized_gain"] = gain
        found = {each.claim: each for each in STUDY.claims(made + other)}
        assert found[claim].holds == holds
        assert "run 1: median 1," in found[claim].measured
        assert f"run 2: median {gain:g}," in found[claim].measured
        (lines,) = STUDY.tables(made + other).values()
        assert [(line["run"], line["step"]) for line in lines] == [(1, 4), (1, 16), (2, 4), (2, 16)]
        assert lines[-1]["standardised gain"] == f"{gain:.2f}, {gain:.3g}"


def test_several_runs_are_probed_and_the_first_chooses_what_is_clipped(config):
    several = dataclasses.replace(config, noise_seeds=2)
    assert [(unit["seed"], unit["step"]) for unit in STUDY.units(several)] == [(1, 4), (1, 16), (2, 4), (2, 16)]
    alone = dataclasses.replace(several, methods=())
    second = STUDY.units(alone)[2]
    found = list(STUDY.run_unit(alone, second))
    assert {row["kind"] for row in found} == {"matrix"}
    assert {row["seed"] for row in found} == {2}
    assert not STUDY.next_units(alone, found)


def test_rows_of_earlier_versions_are_shown_without_what_they_lack(rows):
    old = [
        {key: value for key, value in row.items() if "standardized" not in key and key != "seed"}
        if row["kind"] == "matrix"
        else row
        for row in rows
    ]
    assert not STUDY.tables(old)
    assert len(STUDY.claims(old)) == len(STUDY.claims(rows)) - 4
    assert "standardized" not in STUDY.figures(old)


def test_a_run_that_diverged_is_worse_than_all_others(rows):
    made = copy.deepcopy(rows)
    for row in made:
        if row["kind"] == "clipped" and row["arm"] == "all":
            row["val_loss"] = None
    helps = [claim for claim in STUDY.claims(made) if "advises nowhere" in claim.claim]
    assert len(helps) == 2
    assert not any(claim.holds for claim in helps)
    assert STUDY.figures(made).keys() == STUDY.captions.keys()


def test_figures(rows):
    assert STUDY.figures(rows).keys() == STUDY.captions.keys()
    assert "where" not in STUDY.figures([row for row in rows if row["kind"] != "clipped"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shown": "blocks.9.attn.qkv_w.v"}, "shown must be a hidden matrix of the model, blocks.0.attn.qkv_w.q to"),
        ({"samples": 10**7}, r"after 16 steps \d+ sequences are left, too few for 10000000 samples"),
    ],
)
def test_what_is_needed_at_the_end_is_checked_before_the_training(config, changes, words):
    with pytest.raises(ValueError, match=words):
        next(STUDY.run_unit(dataclasses.replace(config, **changes), {"kind": "noise", "seed": 1, "step": 4}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stages": (49,)}, "stages must be two or more steps"),
        ({"stages": (49, 49)}, "stages must be two or more steps"),
        ({"stages": (49, 500)}, "stages must be steps of the run, 1 to 490"),
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"methods": ("adamw",)}, "methods must clip single matrices, adamw does not"),
    ],
)
def test_bad_configs(changes, words):
    with pytest.raises(ValueError, match=words):
        NoiseStructureConfig(**changes)
