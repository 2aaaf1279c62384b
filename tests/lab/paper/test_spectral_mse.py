import math

import pytest
import torch

from entryclip.lab.paper.spectral_mse import STUDY, study

SMALL = study.SpectralMseConfig(side=48, draws=12, thresholds=(1.0, 4.0, 16.0))


@pytest.fixture(scope="module")
def rows():
    return list(study.run_unit(SMALL, {}))


def test_rows_and_figures(rows):
    assert len(rows) == 4 * (1 + 2 * 3)
    assert rows == list(study.run_unit(SMALL, {}))  # the same numbers again
    assert set(STUDY.figures(rows)) == set(STUDY.captions)


def test_the_bound_and_when_it_is_tight(rows):
    """prop:spectral_to_mse holds in every draw; rem:spectra_to_entry: saturated for aligned noise, else not."""
    assert max(row["tightest"] for row in rows) <= 1 + 1e-9
    plain = {row["regime"]: row for row in rows if row["operator"] == "none"}
    tight = {regime: row["spectral"] / row["entrywise"] for regime, row in plain.items()}
    assert tight["aligned"] == pytest.approx(1, abs=1e-6)
    assert plain["aligned"]["normalized"] < plain["aligned"]["band_low"]
    assert tight["Gaussian"] < 0.01 > tight["small spike"]
    assert plain["small spike"]["normalized"] > plain["small spike"]["band_high"]


def test_noise_has_the_size_asked_for():
    generator = torch.Generator().manual_seed(0)
    G = study.synthetic_signal(64, 3.0, generator).double()
    gap = torch.linalg.svdvals(G)[0] - torch.linalg.svdvals(G)[1]
    for regime in ("Gaussian", "small spike"):
        E = study.sample_noise(regime, G, study.SpectralMseConfig(draws=8), generator)
        assert torch.linalg.matrix_norm(E, 2).median() == pytest.approx(0.2 * float(gap), rel=0.1)


def test_claims_follow_the_rows(rows):
    broken = [{**row, "spectral": 2 * row["entrywise"], "tightest": 2.0} for row in rows]
    assert not STUDY.claims(broken)[0].holds
    assert STUDY.claims(rows)[0].holds
    assert STUDY.claims(rows)[1].holds


@pytest.mark.parametrize(
    "wrong", [{"side": 4}, {"draws": 0}, {"strength": math.nan}, {"size": 0.0}, {"thresholds": ()}]
)
def test_bad_input(wrong):
    with pytest.raises(ValueError, match="must be"):
        study.SpectralMseConfig(**wrong)
