"""The gain of a clip against its definition, by drawing: signal to noise with the clip over that without it."""

import numpy as np
import pytest
import torch

import entryclip as ec
from entryclip.diagnostics.probe.efficiency import best_clip, best_efficiency
from entryclip.noise import Cauchy, Contamination, Gaussian, StudentT
from entryclip.quantiles import Histogram

G = torch.Generator().manual_seed(0)


@pytest.mark.parametrize("operator", ["hard", "smooth"])
@pytest.mark.parametrize("noise", [StudentT(5.0), Contamination(0.05, 1.0, StudentT(3.0, 3.0))], ids=str)
def test_it_is_the_gain_in_signal_to_noise(noise, operator):
    """A signal of 0.05 through the operator, symmetrized so that chance cancels: the slope to a few per cent."""
    x = noise.sample((10**6,), G).double()
    found = best_efficiency(Histogram.of(x), operator)
    apply = {"hard": ec.hard_clip, "smooth": ec.smooth_shrinkage}[operator]
    out = apply(x, found.threshold)
    slope = float((apply(x + 0.05, found.threshold) - apply(x - 0.05, found.threshold)).mean()) / 0.1
    measured = slope**2 * float(x.square().mean()) / float(out.square().mean())
    assert found.factor == pytest.approx(measured, rel=0.05)
    assert found.factor > 1.1
    assert found.quantile == pytest.approx(float((x.abs() <= found.threshold).double().mean()), abs=0.05)


def test_gaussian_noise_gains_nothing():
    h = Histogram.of(Gaussian(3.0).sample((10**6,), G))
    assert best_efficiency(h, "hard").factor == pytest.approx(1, abs=0.01)
    assert best_efficiency(h, "smooth").factor < 1


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_units_do_not_matter(scale):
    x = Contamination(0.05, 1.0, Cauchy(3.0)).sample((10**5,), G)
    found, other = best_efficiency(Histogram.of(x), "hard"), best_efficiency(Histogram.of(x * scale), "hard")
    assert other.quantile == found.quantile
    assert other.factor == pytest.approx(found.factor, rel=0.1)  # the bins lie elsewhere
    assert other.threshold == pytest.approx(found.threshold * scale, rel=0.1)


def test_more_contamination_asks_for_a_lower_quantile():
    laws = [Contamination(alpha, 1.0, Cauchy(3.0)) for alpha in (0.001, 0.05, 0.5)]
    quantiles = [best_efficiency(Histogram.of(law.sample((10**6,), G)), "hard").quantile for law in laws]
    assert quantiles == sorted(quantiles, reverse=True)
    assert len(set(quantiles)) == 3


def test_the_best_clip_touches_least_among_equals():
    """Hard and smooth are within 2 % of each other here over several quantiles: chance must not choose among them."""
    noise = Contamination(0.05, 1.0, Cauchy(1.0))
    found = [best_clip(Histogram.of(noise.sample((10**5,), G))) for _ in range(5)]
    assert {each.operator for each in found} == {"smooth"}
    assert all(each.quantile >= 0.99 for each in found)
    best = max(
        best_efficiency(Histogram.of(noise.sample((10**5,), G)), operator).factor for operator in ("hard", "smooth")
    )
    assert best_clip(Histogram.of(Gaussian(1.0).sample((10**5,), G))).factor == pytest.approx(1, abs=0.02)
    assert best > 10


def test_what_has_no_answer():
    with pytest.raises(ValueError, match="no entry that is not zero"):
        best_efficiency(Histogram.of(np.zeros(9)), "hard")
    with pytest.raises(ValueError, match="operator must be hard or smooth, got 'soft'"):
        best_efficiency(Histogram.of(np.ones(9)), "soft")
