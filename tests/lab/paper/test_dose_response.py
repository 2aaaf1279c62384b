"""The dose-response study: what is corrupted, that it is the same for all methods, and how the runs are judged."""

import dataclasses
import math

import pytest
import torch

from entryclip.lab.paper.dose_response import STUDY
from entryclip.lab.paper.dose_response.corruption import (
    CORRUPTIONS,
    GradientCorruption,
    cauchy_entries,
    corrupt_,
    flip_exponent_bits,
)
from entryclip.lab.paper.dose_response.curves import panels_of
from entryclip.lab.paper.dose_response.study import DoseConfig, DoseRun, run_unit, units
from entryclip.lab.paper.no_harm.study import NoHarmConfig
from entryclip.lab.paper.no_harm.study import run_unit as run_without_corruption

STILL = math.log(257)


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def config(shards):
    some = {"methods": ("adamw", "adamw-auto"), "corruptions": ("bits",), "rates": (1e-2,)}
    return dataclasses.replace(DoseConfig.quick(), data=str(shards), steps=8, seeds=2, **some)


@pytest.fixture(scope="module")
def rows(config):
    return [row for piece in units(config) for row in run_unit(config, piece)]


def test_one_exponent_bit_is_flipped_and_the_value_stays_finite():
    x = torch.cat([torch.randn(20_000, generator=draws()), torch.tensor([0.0, 1.0, -1.5, 3e38, 1e-40] * 200)])
    y = flip_exponent_bits(x, x, draws(1))
    difference = x.view(torch.int32) ^ y.view(torch.int32)
    bit = (difference.double().log2() - 23).round().int()
    assert y.isfinite().all()
    assert torch.equal(difference, 1 << (23 + bit))  # a power of two: one bit
    counts = torch.bincount(bit, minlength=8)
    assert len(counts) == 8
    assert counts[:7].min() > 0.9 * len(x) / 8  # the highest is seldom allowed for values around 1


def test_cauchy_entries_have_the_scale_of_their_matrix():
    rms = torch.cat([torch.full((20_000,), 0.01), torch.full((20_000,), 5.0)])
    y = cauchy_entries(torch.zeros(40_000), rms, draws()).abs()
    for part, size in zip(y.chunk(2), (0.01, 5.0), strict=True):
        assert part.median() == pytest.approx(3 * size, rel=0.06)  # the median of |Cauchy| is its scale; 5 SD


@pytest.mark.parametrize("name", ["cauchy", "bits"])
def test_the_share_of_corrupted_entries_is_the_rate(name):
    grad = torch.randn(2, 400, 500, generator=draws())
    grad[1] *= 100
    clean = grad.clone()
    count = corrupt_(grad, CORRUPTIONS[name], 1e-3, draws(2))
    assert count == pytest.approx(400, abs=100)  # 5 SD
    assert count - 5 <= int((grad != clean).sum()) <= count
    assert corrupt_(grad, CORRUPTIONS[name], 0.0, draws()) == 0


def test_a_rate_of_1e_7_is_met_over_many_steps():
    grad, generator = torch.ones(1000, 1000), draws(3)
    count = sum(corrupt_(grad, CORRUPTIONS["none"], 1e-7, generator) for _ in range(4000))
    assert count == pytest.approx(400, abs=100)


def test_all_methods_of_a_seed_are_corrupted_alike_and_the_clean_runs_are_clean(config, rows):
    runs = DoseRun.from_rows(rows)
    for seed in config.all_seeds():
        assert len({run.corrupted for run in runs if (run.rate, run.seed) == (1e-2, seed)}) == 1
    assert {run.corrupted for run in runs if run.rate == 0} == {0}
    shared = {field.name: getattr(config, field.name) for field in dataclasses.fields(NoHarmConfig)}
    plain = NoHarmConfig(**{**shared, "methods": ("adamw",)})
    (same,) = run_without_corruption(plain, {"method": "adamw", "seed": 301})
    (clean,) = [run for run in runs if (run.method, run.rate, run.seed) == ("adamw", 0.0, 301)]
    assert clean.loss == same["loss"]


def test_the_places_do_not_depend_on_which_matrices_a_method_clips(config, monkeypatch):
    """Each matrix has its own draws, by its place in the model; initial weights are told apart by their norms."""
    seen = []
    monkeypatch.setattr(
        GradientCorruption, "attach", lambda self, given: seen.append([float(p.detach().norm()) for p in given])
    )
    few = dataclasses.replace(config, methods=("adamw", "adamw-hard"), clip_where=("blocks.1.mlp.*",), steps=1)
    for method in few.methods:
        list(run_unit(few, {"method": method, "corruption": "bits", "rate": 1e-2, "seed": 301}))
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 4


def test_corruption_reaches_the_hidden_matrices(rows):
    runs = DoseRun.from_rows(rows)
    by_dose = {run.rate: run.loss for run in runs if (run.method, run.seed) == ("adamw", 301)}
    assert by_dose[0.0] != by_dose[1e-2]


def made(losses):
    """Rows on AdamW, Cauchy entries: {method: {dose: losses of the seeds}}."""
    return [
        DoseRun(
            method=method,
            lr=0.008,
            corruption="cauchy" if dose else "none",
            rate=dose,
            seed=seed,
            loss=loss,
            diverged=None if loss is not None else "training stopped",
            corrupted=0,
            still=STILL,
        ).to_row()
        for method, by_dose in losses.items()
        for dose, own in by_dose.items()
        for seed, loss in enumerate(own)
    ]


CLEAN, LOW, HIGH = 0.0, 1e-4, 1e-2
EXAMPLE = {
    "adamw": {CLEAN: [3.0, 3.1, 3.2], LOW: [3.0, 3.2, 3.1], HIGH: [None, 9.0, 5.0]},
    "post-hard": {CLEAN: [3.0, 3.1, 3.2], LOW: [3.0, 3.1, 3.2], HIGH: [3.1, 3.2, 3.3]},
    "adamw-auto": {CLEAN: [3.0, 3.1, 3.2], LOW: [3.0, 3.1, 3.2], HIGH: [3.1, 3.2, 3.3]},
}


def test_lost_runs_count_as_standing_still_and_the_dose_where_a_clip_pays_is_found():
    (panel,) = panels_of(made(EXAMPLE))
    assert panel.losses["adamw"][HIGH].tolist() == [STILL, STILL, 5.0]
    assert panel.lost["adamw"] == {CLEAN: 0, LOW: 0, HIGH: 2}
    assert panel.pays_from("adamw-auto") == HIGH


def test_without_corruption_there_is_nothing_to_pay_for():
    """A method that ends lower at every dose, 0 among them: from the lowest dose on, not from 0."""
    losses = {"adamw": 3.0, "adamw-auto": 2.9}
    made_up = {method: {dose: [loss, loss + 0.1] for dose in (CLEAN, LOW, HIGH)} for method, loss in losses.items()}
    (panel,) = panels_of(made(made_up))
    assert panel.pays_from("adamw-auto") == LOW
    keeps_up, pays = STUDY.claims(made(EXAMPLE))
    assert keeps_up.holds
    assert pays.holds
    assert pays.measured.startswith("AdamW, auto (gradient) -2.166 at 0.01 (p = 0.023); of each the dose with")
    assert pays.measured.endswith("Holm over all 2 such tests")


def test_whether_it_pays_is_corrected_for_the_number_of_tests():
    """p = .012 alone, .023 among two doses, .058 among five."""
    more = {1e-5: [3.0, 3.1, 3.2], 1e-6: [3.0, 3.1, 3.2], 1e-7: [3.0, 3.1, 3.2]}
    many = {method: {**by_dose, **more} for method, by_dose in EXAMPLE.items()}
    _, pays = STUDY.claims(made(many))
    assert "Holm over all 5 such tests" in pays.measured
    assert not pays.holds


def test_one_dose_above_the_bound_refutes():
    worse = {**EXAMPLE, "adamw-auto": {**EXAMPLE["adamw-auto"], LOW: [3.02, 3.12, 3.22]}}
    keeps_up, _ = STUDY.claims(made(worse))
    assert not keeps_up.holds
    assert "+0.020 at 0.0001" in keeps_up.measured


def test_published_methods_are_rivals_of_their_own():
    better = {**EXAMPLE, "adagc": {dose: [loss - 1 for loss in own] for dose, own in EXAMPLE["post-hard"].items()}}
    against_clips, against_published, _ = STUDY.claims(made(better))
    assert against_clips.holds
    assert not against_published.holds
    assert "largest against AdaGC" in against_published.measured


def test_spectra_is_a_rival_on_adamw_whose_update_it_clips():
    """In the paper's tables it stands beside Muon."""
    (panel,) = panels_of(made({**EXAMPLE, "spectra": EXAMPLE["post-hard"]}))
    assert panel.baseline == "adamw"
    assert set(panel.losses) == {*EXAMPLE, "spectra"}


def test_a_dose_that_lacks_a_run_is_left_out():
    (panel,) = panels_of([row for row in made(EXAMPLE) if (row["rate"], row["seed"]) != (HIGH, 2)])
    assert panel.doses == (CLEAN, LOW)
    assert panel.pays_from("adamw-auto") is None


def test_claims_tables_and_figure(rows):
    assert len(STUDY.claims(rows)) == 2
    assert [len(table) for table in STUDY.tables(rows).values()] == [2]
    assert STUDY.figures(rows).keys() == STUDY.captions.keys()


def test_bad_configs():
    with pytest.raises(ValueError, match="unknown corruption 'dust': choose from cauchy, bits"):
        DoseConfig(corruptions=("dust",))
    with pytest.raises(ValueError, match=r"rates must be shares in \(0, 1\), one or more, each once, got \(0\.0,\)"):
        DoseConfig(rates=(0.0,))
