import math

import pytest
import torch

from entryclip.lab.paper.spectral_control import study as experiment

SMALL = experiment.Config(side=64, draws=6, thresholds=(1.0, 4.0, 32.0), timed_side=128)


@pytest.fixture(scope="module")
def rows():
    return list(experiment.run(SMALL))


def test_rows_and_figures(rows):
    assert len(rows) == 4 * (1 + 5 * 3) + 5
    again = list(experiment.run(SMALL))
    assert [row for row in rows if row["noise"]] == [row for row in again if row["noise"]]  # all but the times
    assert set(experiment.plot(rows)) == set(experiment.CAPTIONS)
    assert experiment.table(rows).count("\n") == 6


def test_both_halves_of_the_question(rows):
    """Hard clipping keeps the direction where noise is localized in entries, and loses it where it is not."""
    found = experiment.best(rows)
    assert found["contamination", "none"]["kept"] < 0.2
    assert found["contamination", "hard"]["kept"] > 0.9
    assert found["low-rank", "hard"]["kept"] < 0.2
    assert found["low-rank", "spectral"]["error"] < 1e-5  # a spectral clip at sigma_1(G)
    assert experiment.claims(rows)[0]["holds"]


def test_measures_on_known_matrices():
    G = torch.diag(torch.tensor([4.0, 1.0, 1.0]))
    same = experiment._measure(torch.stack([G, G, G]), G)
    assert same == pytest.approx({"error": 0, "kept": 1, "leading": 1}, abs=1e-6)
    turned = experiment._measure(torch.diag(torch.tensor([1.0, 8.0, 1.0]))[None], G)
    assert turned == pytest.approx({"error": 1, "kept": 0, "leading": 1}, abs=1e-6)
    tied = experiment._measure(torch.diag(torch.tensor([4.0, 4.0, 1.0]))[None], G)  # the direction is in the space
    assert tied == pytest.approx({"error": 0, "kept": 1, "leading": 2}, abs=1e-6)


def test_claims_follow_the_rows(rows):
    broken = [{**row, "error": 1.0, "kept": 0.0} if row["noise"] else row for row in rows]
    assert not experiment.claims(broken)[0]["holds"]
    assert not experiment.claims(broken)[4]["holds"]


@pytest.mark.parametrize(
    "wrong", [{"side": 4}, {"draws": 0}, {"noise": 0.0}, {"thresholds": ()}, {"strength": math.inf}]
)
def test_bad_input(wrong):
    with pytest.raises(ValueError, match="must be"):
        experiment.Config(**wrong)
