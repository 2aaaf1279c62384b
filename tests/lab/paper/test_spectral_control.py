import math

import pytest
import torch

from entryclip.lab.paper.spectral_control import STUDY, study
from entryclip.lab.paper.spectral_control.claims import BestClips, markdown_table

SMALL = study.SpectralControlConfig(side=64, draws=6, thresholds=(1.0, 4.0, 32.0), timed_side=128)


@pytest.fixture(scope="module")
def rows():
    return list(study.run_unit(SMALL, {}))


def test_rows_and_figures(rows):
    assert len(rows) == 4 * (1 + 5 * 3) + 5
    again = list(study.run_unit(SMALL, {}))
    assert [row for row in rows if row["noise"]] == [row for row in again if row["noise"]]  # all but the times
    assert set(STUDY.figures(rows)) == set(STUDY.captions)
    assert markdown_table(rows).count("\n") == 6


def test_direction_is_kept_under_localized_noise_only(rows):
    """Hard clipping keeps the direction where noise is localized in entries, and loses it where it is not."""
    best = BestClips(rows)
    assert best("contamination", "none").kept < 0.2
    assert best("contamination", "hard").kept > 0.9
    assert best("low-rank", "hard").kept < 0.2
    assert best("low-rank", "spectral").error < 1e-5  # a spectral clip at sigma_1(G)
    assert STUDY.claims(rows)[0].holds


def test_spectral_medians_of_diagonal_matrices():
    """Relative error of sigma_1, share of the direction kept, dimension of the leading space."""
    G = torch.diag(torch.tensor([4.0, 1.0, 1.0]))
    same = study.spectral_medians(torch.stack([G, G, G]), G)
    assert same == pytest.approx((0, 1, 1), abs=1e-6)
    turned = study.spectral_medians(torch.diag(torch.tensor([1.0, 8.0, 1.0]))[None], G)
    assert turned == pytest.approx((1, 0, 1), abs=1e-6)
    tied = study.spectral_medians(torch.diag(torch.tensor([4.0, 4.0, 1.0]))[None], G)  # the direction is in the space
    assert tied == pytest.approx((0, 1, 2), abs=1e-6)


def test_claims_follow_the_rows(rows):
    broken = [{**row, "error": 1.0, "kept": 0.0} if row["noise"] else row for row in rows]
    assert not STUDY.claims(broken)[0].holds
    assert not STUDY.claims(broken)[4].holds


@pytest.mark.parametrize(
    "wrong", [{"side": 4}, {"draws": 0}, {"noise": 0.0}, {"thresholds": ()}, {"strength": math.inf}]
)
def test_bad_input(wrong):
    with pytest.raises(ValueError, match="must be"):
        study.SpectralControlConfig(**wrong)
