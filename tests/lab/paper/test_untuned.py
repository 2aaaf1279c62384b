"""The regression without a threshold to tune: its rows, and what its claims make of them."""

import dataclasses

import numpy as np
import pytest

from entryclip.lab.paper.untuned import STUDY
from entryclip.lab.paper.untuned.claims import claims, comparisons
from entryclip.lab.paper.untuned.study import UntunedConfig, UntunedRun, run_unit, units

SMALL = UntunedConfig(
    sizes=((8, 16),), alphas=(0.0, 1.0), rates=(0.01, 0.1), fine_rates=(0.03,), quantiles=(0.9,), seeds=2, steps=60
)


def made(method, lr, loss, alpha=0.0, *, is_fine=False):
    return UntunedRun(
        d=32, stage="post", alpha=alpha, method=method, setting=None, lr=lr, is_fine=is_fine, loss=loss, losses=[loss]
    ).to_row()


def test_rows_of_a_unit():
    pieces = units(SMALL)
    assert len(pieces) == 4
    runs = UntunedRun.from_rows(list(run_unit(SMALL, pieces[1])))
    assert [run.method for run in runs].count("auto, smooth") == 3
    assert {run.lr for run in runs if run.is_fine} == {0.03}
    best = {method: min(run.loss for run in runs if run.method == method) for method in ("none", "auto, smooth")}
    assert best["auto, smooth"] < best["none"]  # Cauchy noise alone: without a clip it bursts
    assert all(run.loss == np.median(run.losses) for run in runs)


def test_the_same_seeds_give_the_same_rows():
    piece = units(SMALL)[0]
    assert list(run_unit(SMALL, piece)) == list(run_unit(SMALL, piece))


def test_claims_compare_the_best_settings():
    rows = [made("hard", 0.01, 9.0), made("smooth", 0.01, 8.0), made("none", 0.01, 1.0)]
    rows += [
        made("auto, smooth", 0.01, 8.5),
        made("auto, smooth", 0.02, 8.2, is_fine=True),
        made("auto, smooth", 0.05, 9.0),
    ]
    (found,) = comparisons(UntunedRun.from_rows(rows))
    assert found.ratio == pytest.approx(8.2 / 8.0)
    assert found.auto_coarse == 8.5
    assert found.is_inside
    (claim,) = claims(rows)
    assert claim.holds
    assert "1.02 at 0" in claim.measured
    worse = [{**row, "loss": 1.1 * row["loss"]} if row["method"].startswith("auto") else row for row in rows]
    assert not claims(worse)[0].holds
    heavy = [{**row, "alpha": 0.5} for row in rows]
    assert not claims(heavy)[0].holds  # there the bound is .75


def test_a_best_rate_at_the_edge_is_told():
    rows = [made("hard", 0.01, 9.0), made("auto, smooth", 0.01, 8.0), made("auto, smooth", 0.05, 9.0)]
    assert "at the edge of the grid" in claims(rows)[0].measured


def test_bad_configs():
    for change in ({"seeds": 0}, {"alphas": (2.0,)}, {"rates": (0.0,)}):
        with pytest.raises(ValueError, match="must be"):
            dataclasses.replace(SMALL, **change)


def test_seeds_are_its_own():
    assert STUDY.config().first_seed >= 1000
