"""Rules by the norms of matrices: their laws, their numbers, and the steps that they must not learn from."""

import math

import numpy as np
import pytest
import torch
from libraries import LIBRARIES, make, values

import entryclip as ec
from entryclip.norm_thresholds import RunningNorm, RunningSpectralNorm, frobenius_norm, largest_singular_value
from entryclip.testing import check_rule

RULES = [RunningNorm(), RunningNorm(1.5, 0.9, warmup=0), RunningSpectralNorm(), RunningSpectralNorm(0.5, 2.0)]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_conformance(rule):
    check_rule(rule)


def thresholds_over(rule, inputs):
    state, found = rule.init(inputs[0]), []
    for x in inputs:
        t, state = rule(x, state)
        found.append(float(t))
    return found


def test_a_running_norm_begins_at_the_smallest_of_its_warm_up():
    found = thresholds_over(
        RunningNorm(2.0, 0.5, warmup=3), [size * torch.eye(1) for size in (5.0, 1.0, 3.0, 4.0, 1.0)]
    )
    assert found == [math.inf, math.inf, math.inf, 2.0, 3.0]  # then 2 x 1, and 2 x (1 + 2) / 2


def test_without_a_warm_up_the_first_norm_is_the_first_mean():
    assert thresholds_over(RunningNorm(2.0, 0.5, warmup=0), [torch.eye(1)] * 2) == [math.inf, 2.0]


@pytest.mark.parametrize("rule", [RunningNorm(2.0, 0.5, warmup=1), RunningSpectralNorm(0.5)], ids=str)
@pytest.mark.parametrize("odd", [0.0, math.inf, math.nan])
def test_a_step_of_zeros_or_without_a_finite_norm_leaves_no_trace(rule, odd):
    """AdaGC as published would take a norm of 0 for the mean, and the parameter would stand still for ever."""
    x = torch.eye(3)
    plain, disturbed = rule.init(x), rule.init(x)
    for size in (odd, 1.0, odd, 2.0, odd, 3.0):
        t, disturbed = rule(torch.full((3, 3), size) if size is odd else size * x, disturbed)
        if size is not odd:
            wanted, plain = rule(size * x, plain)
            assert torch.equal(t, wanted)
    assert all(torch.equal(plain[key], disturbed[key]) for key in plain)


@pytest.mark.parametrize("library", LIBRARIES)
def test_norms_in_every_library(library):
    x = np.random.default_rng(0).standard_normal((4, 6, 5))
    expected = np.linalg.norm(x, axis=(1, 2)), np.linalg.norm(x, 2, axis=(1, 2))
    for function, wanted in zip((frobenius_norm, largest_singular_value), expected, strict=True):
        found = function(make(library, "float32", x))
        assert tuple(found.shape) == (4, 1, 1)
        np.testing.assert_allclose(values(found).reshape(-1), wanted, rtol=1e-6)


@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_norms_neither_overflow_nor_vanish(size):
    x = torch.full((4, 4), size)
    assert float(frobenius_norm(x)) == pytest.approx(4 * size, rel=1e-6)
    assert float(largest_singular_value(x)) == pytest.approx(4 * size, rel=1e-6)


def test_spectral_clip_at_the_running_mean():
    """The bias-corrected mean of the steps before, by hand, and the singular values after the clip."""
    clip, g = ec.Clip(ec.spectral_clip, RunningSpectralNorm(0.9)), torch.Generator().manual_seed(0)
    state, mean, weight = clip.init(torch.ones(5, 7)), 0.0, 0.0
    for step in range(6):
        x = torch.randn(5, 7, generator=g) * (10 if step == 4 else 1)
        y, state = clip.update(x, state)
        u, s, vh = torch.linalg.svd(x.double(), full_matrices=False)
        limit = mean / weight if step else math.inf
        torch.testing.assert_close(y.double(), (u * s.clamp(max=limit)) @ vh, rtol=1e-5, atol=1e-6)
        mean, weight = 0.9 * mean + 0.1 * float(s[0]), 0.9 * weight + 0.1


@pytest.mark.parametrize(
    ("make_rule", "message"),
    [
        (lambda: RunningNorm(relative=0.0), r"relative must be a positive finite number, got 0\.0"),
        (lambda: RunningNorm(beta=1.0), r"beta must be a number in \[0, 1\), got 1\.0"),
        (lambda: RunningNorm(warmup=-1), "warmup must be a whole number >= 0, got -1"),
        (lambda: RunningSpectralNorm(multiple=math.inf), "multiple must be a positive finite number, got inf"),
        (lambda: RunningNorm()(torch.ones(2, 2)), "has memory: pass the state"),
    ],
)
def test_refusals(make_rule, message):
    with pytest.raises(ValueError, match=message):
        make_rule()
