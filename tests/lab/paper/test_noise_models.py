import math

import numpy as np
import pytest

from entryclip.lab.paper.noise_models import STUDY, study
from entryclip.lab.paper.noise_models.claims import measured_power

SMALL = study.NoiseModelsConfig(side=48, draws=24, sides=(16, 32, 64), entries=10**5)


@pytest.fixture(scope="module")
def rows():
    return list(study.run_unit(SMALL, {}))


def test_rows_and_figures(rows):
    count = {kind: sum(row["kind"] == kind for row in rows) for kind in ("draw", "summary", "marginal", "rate")}
    assert count == {"draw": 4 * 24, "summary": 4, "marginal": 4 * 120, "rate": 3 * 2 * 3}
    assert rows == list(study.run_unit(SMALL, {}))  # the same numbers again
    assert set(STUDY.figures(rows)) == set(STUDY.captions)


def test_what_the_figure_shows(rows):
    """Already at 48 x 48 heavy-tailed entries drive sigma_1 and the others do not."""
    rho = {row["model"]: row["rho"] for row in rows if row["kind"] == "summary"}
    assert min(rho["heavy-tailed"], rho["mixture"]) > 0.8 > max(rho["Gaussian"], rho["low-rank"])
    for model in study.MODELS:
        mass = sum(row["density"] for row in rows if row["kind"] == "marginal" and row["model"] == model)
        assert mass * 0.2 == pytest.approx(1, abs=0.01)  # bins of .2 standard deviations


def test_tab_localization_regimes(rows):
    """The exact columns of the table for flat directions: spike and aligned noise."""
    for row in rows:
        if row["kind"] == "rate" and row["directions"] == "flat":
            mn = row["side"] ** 2
            expected = {"spike": (1 / mn, 1 / mn, 1), "aligned": (1 / mn**2, 1, 1 / mn**2)}
            if row["noise"] in expected:
                assert (row["r_max"], row["r"], row["ratio"]) == pytest.approx(expected[row["noise"]], rel=1e-4)
    medians = study.LocalizationMedians.from_rows(rows)
    assert measured_power(medians, "aligned", "ratio") == pytest.approx(-2, abs=1e-3)
    assert measured_power(medians, "Gaussian", "r_max") == pytest.approx(-2, abs=0.15)


def test_claims_follow_the_rows(rows):
    """Swap the models' names: what was claimed of heavy tails is now measured on Gaussian noise and fails."""
    other = {"Gaussian": "heavy-tailed", "heavy-tailed": "Gaussian"}
    swapped = [{**row, "model": other.get(row["model"], row["model"])} if "model" in row else row for row in rows]
    assert not any(claim.holds for claim in STUDY.claims(swapped)[:3])
    assert STUDY.claims(rows)[0].holds
    assert all(np.isfinite(value) for row in rows for value in row.values() if isinstance(value, float))


@pytest.mark.parametrize(
    "wrong", [{"side": 8}, {"sides": (32, 64)}, {"draws": 4}, {"strength": 0.5}, {"strength": math.inf}]
)
def test_bad_input(wrong):
    with pytest.raises(ValueError, match="must be"):
        study.NoiseModelsConfig(**wrong)
