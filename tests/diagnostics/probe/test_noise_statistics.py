"""Statistics of one matrix, streamed, against the same on all samples at once."""

import numpy as np
import pytest
import torch

import entryclip as ec
from entryclip.diagnostics.directions import leading_directions
from entryclip.diagnostics.probe import marginal, noise_statistics
from entryclip.diagnostics.probe.noise_statistics import DirectionTensors, NoiseStatistics
from entryclip.diagnostics.probe.standardized import StandardizedStatistics

G = torch.Generator().manual_seed(0)
SHAPE = (60, 90)


def filled(x, k=3):
    """The statistics of the matrices `x`, with no centre."""
    signal = torch.randn(SHAPE, generator=G)
    axes = DirectionTensors.of(leading_directions(signal, k), signal)
    found, zero = NoiseStatistics(axes, axes), torch.zeros(SHAPE)
    for i, each in enumerate(x):
        found.add(i, each, zero, zero, signal > 0)
    return found, signal


@pytest.mark.parametrize("piece", [1 << 17, 200])
def test_projections_are_those_of_localization(monkeypatch, piece):
    monkeypatch.setattr(noise_statistics, "_PIECE", piece)  # in one piece, and two rows at a time
    x = torch.randn(5, *SHAPE, generator=G)
    found, signal = filled(x)
    expected = ec.diagnostics.localization(x, signal, k=(1, 2, 3))
    np.testing.assert_allclose(np.array(found.projections)[:, 1], expected.r_max, rtol=1e-4)
    np.testing.assert_allclose(np.array(found.projections)[:, 0], expected.r, rtol=1e-3, atol=1e-9)
    np.testing.assert_allclose(np.array(found.plain_projections), np.array(found.projections), rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_numbers_of_each_sample(scale):
    """At any scale that fp32 holds, where squares do not."""
    x = scale * torch.randn(5, *SHAPE, generator=G)
    x[2, 7, 8] = 100 * scale
    found, _ = filled(x)
    np.testing.assert_allclose(found.largest, x.abs().amax((1, 2)), rtol=1e-6)
    np.testing.assert_allclose(found.sigma, torch.linalg.svdvals(x.double())[:, 0], rtol=1e-3)
    np.testing.assert_allclose(found.square, x.double().square().sum((1, 2)), rtol=1e-5)
    np.testing.assert_allclose(found.scale, 5 * [scale], rtol=0.05)
    (spike,) = found.spikes
    assert (spike.sample, spike.row, spike.column) == (2, 7, 8)
    assert spike.size == pytest.approx(100, rel=0.05)
    assert str(spike).startswith("sample 2, row 7, column 8: 9")


def test_the_marginal_is_in_scales_and_its_largest_are_kept(monkeypatch):
    monkeypatch.setattr(marginal, "_KEPT", 50)
    x = torch.randn(40, *SHAPE, generator=G) * torch.logspace(-3, 3, 40)[:, None, None]  # sizes differ
    found, _ = filled(x)
    entries = (x / torch.tensor(found.scale)[:, None, None]).abs().reshape(-1)
    top, count = found.marginal.largest_entries()
    assert count == x.numel() == found.marginal.histogram.count
    np.testing.assert_allclose(top, entries.sort(descending=True).values[:50], rtol=1e-5)
    assert (
        ec.noise.fit(found.marginal.histogram).contaminated is False
    )  # though together they are anything but Gaussian
    assert ec.noise.fit(x).contaminated is True


def test_a_sample_without_noise_is_silent():
    x = torch.randn(3, *SHAPE, generator=G)
    x[1] = 0
    found, _ = filled(x)
    assert found.silent == 1
    assert found.samples == [0, 2]
    assert len(found.projections) == len(found.sigma) == 2


def test_one_entry_and_next_to_nothing_else():
    """A bulk below what fp32 can be divided by: no infinity, and the spike is seen."""
    x = torch.full((2, *SHAPE), 1e-42)
    x[:, 3, 4] = 1.0
    found, _ = filled(x)
    assert [(spike.row, spike.column) for spike in found.spikes] == [(3, 4), (3, 4)]
    assert np.isfinite(found.marginal.largest_entries()[0]).all()


@pytest.mark.parametrize("shape", [(2, 3), (3, 3), (8, 8), (10, 64), (31, 31)])
def test_gaussian_entries_of_a_narrow_matrix_are_no_spikes(shape):
    """Of few entries the largest often carries half of sigma_1: a spike is also beyond what chance gives."""
    g = torch.Generator().manual_seed(0)
    found = StandardizedStatistics()
    for sample in range(200):
        found.add_(sample, torch.randn(shape, generator=g))
    assert not found.spikes
    spiked = torch.randn(shape, generator=g)
    spiked[1, 2] = 1e6
    if min(shape) > 2:
        found.add_(200, spiked)
        assert [(each.sample, each.row, each.column) for each in found.spikes] == [(200, 1, 2)]
