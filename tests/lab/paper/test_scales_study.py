"""The study of scales: its controls have power, every matrix is measured, and claims follow the rows."""

import copy
import dataclasses

import numpy as np
import pytest
import torch

from entryclip.lab.paper.scales import STUDY
from entryclip.lab.paper.scales.claims import BOUND
from entryclip.lab.paper.scales.controls import CONTROLS, HEAVY
from entryclip.lab.paper.scales.language_model import make_task
from entryclip.lab.paper.scales.measurement import measure, over_mean_scales
from entryclip.lab.paper.scales.study import ControlRow, GradientRow, ScalesConfig, corpora
from entryclip.lab.paper.scales.training import Rates, stages


@pytest.fixture(scope="module")
def config(shards):
    sizes = {"widths": (32,), "stages": (3, 6), "sequences": 6, "length": 32, "samples": 4, "measured": 2}
    return dataclasses.replace(ScalesConfig.quick(), corpora=(str(shards),), optimizers=("muon",), **sizes)


@pytest.fixture(scope="module")
def rows(config):
    return [row for unit in STUDY.units(config) for row in STUDY.run_unit(config, unit)]


def test_units_cover_the_whole_design_and_each_once():
    config = ScalesConfig(corpora=("a", "b"))
    units = [tuple(unit.values()) for unit in STUDY.units(config)]
    assert len(units) == len(set(units)) == 1 + 3 * 3 * 2 * 2  # controls; seeds, digits and corpora, widths, optimizers


def test_every_matrix_is_measured_at_every_stage(rows):
    found = GradientRow.from_rows(rows)
    names = {model: {row.matrix for row in found if row.corpus == model} for model in ("out", "digits")}
    assert len(names["out"]) == 23  # the tiny model: 20 in its blocks, embedding, value embedding and head
    assert len(names["digits"]) == 5
    counts = {(row.corpus, row.step, row.source): 0 for row in found}
    for row in found:
        counts[row.corpus, row.step, row.source] += 1
    for model in names:
        for step in (3, 6):
            assert counts[model, step, "batch"] == len(names[model])
            assert counts[model, step, "noise"] == 2 * len(names[model])
    layers = {row.layer for row in found if row.corpus == "out"}
    assert layers >= {"queries", "keys", "values", "attention's output", "MLP, in", "MLP, out", "embedding", "head"}
    assert all(abs(row.rows_share + row.columns_share + row.rest_share - 1) < 1e-9 for row in found)


@pytest.mark.parametrize("law", CONTROLS)
def test_standardising_keeps_heavy_tails_and_nothing_else(law):
    """In 100 other draws the gain is 1.19 or more for t_5, the lightest heavy law, and at most 1.001 for Gaussian."""
    found = measure(CONTROLS[law]((256, 128), torch.Generator().manual_seed(7)))
    assert (found["standardized"] > BOUND) == (law in HEAVY)
    if law == "Gaussian with scales":
        assert found["raw"] > 2
        assert found["standardized"] < 1.01
        assert found["rows_share"] > 0.05 < found["columns_share"]


def test_mean_scales_divide_out_rows_and_columns_exactly_and_leave_zeros():
    signs = np.sign(np.random.default_rng(0).standard_normal((20, 30)))
    x = np.arange(1.0, 21)[:, None] * signs * np.arange(30.0)
    z = over_mean_scales(x)
    assert np.allclose(np.abs(z[:, 1:]), np.abs(z[0, 1]))
    assert not z[:, 0].any()


def test_batch_gradients_are_means_of_single_ones_and_training_lowers_the_loss(shards):
    """A stage's gradients are those of the model at that step: the mean of all single ones is the batch's."""
    task = make_task(shards, "tiny", width=32, seed=1, sequences=4, length=32, needed=24)
    fixed = next(task.batches)
    task = task._replace(batches=iter([fixed] * 24))
    first, last = None, None
    for stage in stages(task, "adamw", Rates(0.01, 0.05), steps=(2, 20), samples=4):
        first, last = first or stage.loss, stage.loss
        for _, batch, singles in stage.gradients:
            torch.testing.assert_close(singles.mean(0), batch, rtol=1e-3, atol=1e-6)
    assert last < 0.9 * first


def test_the_same_config_gives_the_same_rows(config, rows):
    unit = STUDY.units(config)[-1]
    again = list(STUDY.run_unit(config, unit))
    assert again == rows[-len(again) :]


def test_claims_follow_the_rows(rows):
    made = copy.deepcopy(rows)
    for row in made:
        row |= {"raw": 5.0, "standardized": 1.0, "mean_standardized": 1.0, "largest": 3.0}
        if row["kind"] == "control" and row["law"] in HEAVY:
            row["standardized"] = 1.5
    assert all(claim.holds for claim in STUDY.claims(made))
    for row in made:
        row |= {"raw": 1.0, "standardized": 1.05, "largest": 30.0}
    held = [claim.claim for claim in STUDY.claims(made) if claim.holds]
    assert held
    assert all("on every matrix" in claim for claim in held)  # 1.05 is within 1.1, and nothing else is true of these
    made[-1]["standardized"] = 7.0
    named = [claim for claim in STUDY.claims(made) if made[-1]["matrix"] in claim.measured]
    assert len(named) == 1
    assert not named[0].holds


def test_figures_and_tables(rows):
    assert STUDY.figures(rows).keys() == STUDY.captions.keys()
    (table,) = STUDY.tables(rows).values()
    assert len(table) == len({(row.layer, row.source) for row in GradientRow.from_rows(rows)})
    controls = [row for row in rows if row["kind"] == "control"]
    assert len(ControlRow.from_rows(controls)) == 2 * len(CONTROLS)


def test_other_data_makes_rows_stale(config, shards):
    assert corpora(config).folder == shards
    alone = corpora(dataclasses.replace(config, corpora=()))
    assert alone.content != corpora(config).content


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stages": (20, 20)}, "stages must be steps from 1 on"),
        ({"widths": (100,)}, "width must be a multiple of 64, the size of a head, got 100"),
        ({"optimizers": ("sgd",)}, "optimizers must be adamw or muon, got 'sgd'"),
        ({"samples": 20}, "measured <= samples <= sequences must hold"),
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"corpora": ("a/x", "b/x")}, "corpora must be folders of different names"),
    ],
)
def test_bad_configs(changes, words):
    with pytest.raises(ValueError, match=words):
        ScalesConfig(**changes)


def test_too_little_text_is_refused_before_the_training(config):
    unit = STUDY.units(config)[-1]
    with pytest.raises(ValueError, match=r"batches of 6 x 32 tokens, the run needs 1000004: use more text"):
        next(iter(STUDY.run_unit(dataclasses.replace(config, stages=(3, 10**6)), unit)))
