"""The study of what `auto()` costs: counts are right, counting changes nothing, the bounds are the stated ones."""

import dataclasses

import pytest
import torch

import entryclip as ec
from entryclip.lab.lm.train.run import Run
from entryclip.lab.paper.no_harm import STUDY
from entryclip.lab.paper.no_harm.counting_auto import Actions, CountingAuto
from entryclip.lab.paper.no_harm.study import NoHarmConfig, counting, hash_weights, run_unit, units


@pytest.fixture(scope="module")
def config(shards):
    return dataclasses.replace(NoHarmConfig.quick(), data=str(shards), steps=10, seeds=1)


@pytest.fixture(scope="module")
def rows(config):
    return [row for piece in units(config) for row in run_unit(config, piece)]


def test_one_unit_per_method_and_seed_and_whole_pairs_first(config):
    found = units(dataclasses.replace(config, seeds=2))
    assert len(found) == 12
    assert {piece["seed"] for piece in found[:6]} == {301}
    assert [piece["method"] for piece in found[:6]] == list(config.methods)


def test_counting_does_not_change_the_run(config, rows):
    """With AdamW it takes the gradient's clip out of the fused kernel, which rounds otherwise."""
    for method in ("adamw-auto", "pre-auto"):
        run = Run(config.settings(method, 301), config.folder())
        run.advance()
        (row,) = [row for row in rows if (row["method"], row["seed"]) == (method, 301)]
        if method == "adamw-auto":
            assert row["loss"] == pytest.approx(run.rows[-1]["val_loss"], rel=1e-6)
        else:
            assert (row["loss"], row["weights"]) == (run.rows[-1]["val_loss"], hash_weights(run.trainer.model))


@pytest.mark.parametrize(("method", "plain"), [("adamw-auto", "adamw"), ("muon-auto", "muon"), ("pre-auto", "muon")])
def test_a_run_without_an_action_is_equal_to_the_bit(config, rows, method, plain):
    run, actions = Run(config.settings(method, 301), config.folder()), Actions()
    never = CountingAuto(margin=1e9, false_alarms=1e-300, actions=actions)
    run.trainer.replace_clips(lambda clip: dataclasses.replace(clip, rule=never))
    run.advance()
    assert actions.entries > 0
    assert actions.entries_changed == 0
    (row,) = [row for row in rows if row["method"] == plain]
    assert (row["loss"], row["weights"]) == (run.rows[-1]["val_loss"], hash_weights(run.trainer.model))


def test_clipped_guarded_and_untouched_matrices_are_told_apart():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 128, 128, generator=draw)
    x[1, 5, 7] = 1e6  # the guard changes this entry
    x[2] = torch.empty(128, 128).cauchy_(generator=draw)  # clipped as a whole
    actions = Actions()
    clip = counting(ec.auto(), actions)
    y, _ = clip.update(x, clip.init(x))
    actions.end_step()
    plain, _ = ec.auto().update(x, ec.auto().init(x))
    assert torch.equal(y, plain)
    clip.update(x[:1], clip.init(x[:1]))
    actions.end_step()
    changed = int((plain != x).sum())
    assert changed > 128 * 128 / 2
    assert dataclasses.asdict(actions) == {
        "steps": 2,
        "steps_changed": 1,
        "entries": 4 * 128 * 128,
        "entries_changed": changed,
        "matrix_steps": 4,
        "matrix_steps_clipped": 1,
        "matrix_steps_guarded": 1,
    }


def test_only_auto_is_counted():
    with pytest.raises(TypeError, match=r"only the actions of auto\(\) are counted, got smooth_shrinkage\(q=0\.9\)"):
        counting(ec.smooth(0.9), Actions())


def made(rows, differences, weights="other"):
    """Rows of Muon with these final losses above those of Muon without a clip, seed by seed."""
    plain = next(row for row in rows if row["method"] == "muon")
    found = []
    for seed, difference in enumerate(differences):
        found.append({**plain, "seed": seed, "loss": 3.0, "weights": "same"})
        loss = None if difference is None else 3.0 + difference
        found.append({**plain, "method": "muon-auto", "seed": seed, "loss": loss, "weights": weights})
    return found


@pytest.mark.parametrize(
    ("differences", "holds"),
    [
        ((0.0, 0.0), True),
        ((0.004, 0.004, 0.004), True),
        ((0.006, 0.006, 0.006), False),  # the mean is too large
        ((-0.03, 0.03, 0.0), False),  # the interval is too wide
        ((0.0,), False),  # a single pair has no interval
        ((0.0, None), False),
    ],
)
def test_the_bounds(rows, differences, holds):
    (claim,) = STUDY.claims(made(rows, differences))
    assert claim.holds == holds
    assert "none of" in claim.measured


def test_equal_runs_are_said_to_be_equal(rows):
    (claim,) = STUDY.claims(made(rows, (0.0, 0.0), weights="same"))
    assert claim.holds
    assert "all of 2 pairs equal to the bit" in claim.measured


def test_claims_tables_and_figure(rows):
    assert len(STUDY.claims(rows)) == 4
    (table,) = STUDY.tables(rows).values()
    assert [line["method"] for line in table][:2] == ["AdamW", "AdamW, auto (gradient)"]
    assert STUDY.figures(rows).keys() == STUDY.captions.keys()
    assert STUDY.figures(made(rows, (0.0, None))).keys() == STUDY.captions.keys()


def test_bad_configs():
    with pytest.raises(ValueError, match="seeds must be at least 1, got 0"):
        NoHarmConfig(seeds=0)
    with pytest.raises(ValueError, match="unknown method 'adam': choose from adamw"):
        NoHarmConfig(methods=("adam",))
    with pytest.raises(ValueError, match=r"methods must be one or more, each once, got \(\)"):
        NoHarmConfig(methods=())
