"""Noise with separable scales, e_ij = r_i z_ij c_j: each step of the derivation, and the guarantee held by runs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import APART, LAWS, WEAKER, processed, weaker

import entryclip as ec
from entryclip.noise import Cauchy, Contamination, Laplace, StudentT
from entryclip.scales import row_column_scales
from entryclip.theory.entry import OPERATOR_BOUNDS
from entryclip.theory.exact_bias import variance_bound
from entryclip.theory.scales import Scales

SIDES = st.lists(st.floats(0.05, 20), min_size=1, max_size=6)
OPERATORS = st.sampled_from(["hard", "smooth"])


def nuclear(x):
    return np.linalg.norm(x, "nuc")


@given(SIDES, SIDES, st.integers(0, 10**6))
def test_sums(rows, columns, seed):
    """The sums of the derivation, and ||x||_* <= the sum of the lengths of the rows, or of the columns."""
    scales, s = Scales.of(rows, columns), np.outer(rows, columns)
    assert scales.frobenius == pytest.approx(np.linalg.norm(s))
    by_rows, by_columns = (np.linalg.norm(s, axis=axis).sum() for axis in (1, 0))
    assert scales.nuclear == pytest.approx(min(by_rows, by_columns))
    assert scales.nuclear <= math.sqrt(min(s.shape)) * scales.frobenius * (1 + 1e-12)  # the paper's way to the same
    np.testing.assert_allclose(scales.thresholds(3.0), 3 * s)
    x = s * np.random.default_rng(seed).standard_normal(s.shape)
    assert nuclear(x) <= min(np.linalg.norm(x, axis=axis).sum() for axis in (1, 0)) * (1 + 1e-12)


@given(st.integers(1, 50), st.integers(1, 50))
def test_without_scales_the_sums_are_the_papers(m, n):
    r, D = min(m, n), math.sqrt(max(m, n) / min(m, n))
    assert Scales.ones((m, n)).frobenius == pytest.approx(math.sqrt(m * n))
    assert Scales.ones((m, n)).nuclear == pytest.approx(D * r**1.5)


@settings(max_examples=25)
@given(LAWS, SIDES, SIDES, st.integers(0, 10**6), OPERATORS)
def test_alignment_absorption_and_variance(noise, rows, columns, seed, operator):
    """Per-entry thresholds keep rho; variances scale with (r_i c_j)^2: the exact processed moments of every entry."""
    shape = (len(rows), len(columns))
    found = ec.theory.guarantee(
        "pre", operator, noise, bound=1.0, shape=shape, scales=(rows, columns), iterations=1, batch=1, exact_bias=True
    )
    s = np.outer(rows, columns)
    G = s * np.random.default_rng(seed).uniform(-1, 1, shape)
    M, V = processed(operator, found.thresholds, G, [weaker(noise, scale) for scale in s.ravel()])
    assert (np.abs(M - G) <= found.rho * np.abs(G) * (1 + 1e-9) + 1e-9 * s).all()
    assert (G * M).sum() >= (1 - found.rho) * (G**2).sum() * (1 - 1e-9)
    assert nuclear(M - G) <= math.sqrt(min(shape)) * found.rho * nuclear(G) * (1 + 1e-6) + 1e-9 * s.max()
    assert (found.variance * s**2 * (1 + 1e-8) >= V).all()
    assert found.variance == pytest.approx(variance_bound(operator, found.threshold, noise, 1.0))


@given(st.one_of(LAWS, APART), SIDES, SIDES, st.integers(0, 10**6), WEAKER, OPERATORS, st.booleans())
def test_weaker_noise(noise, rows, columns, seed, factors, operator, exact_bias):
    """Noise r'_i z' c'_j with any r' <= r, c' <= c and z' weaker than z: rho and variance hold for every entry."""
    shape, draw = (len(rows), len(columns)), np.random.default_rng(seed)
    found = ec.theory.guarantee(
        *("pre", operator, noise),
        **{"bound": 1.0, "shape": shape, "scales": (rows, columns), "iterations": 1, "batch": 1},
        exact_bias=exact_bias or None,
    )
    lower = np.outer(*(draw.choice([1, draw.uniform(0.01, 1)], side) for side in shape))
    s = np.outer(rows, columns)
    G = s * draw.choice([0, 1, draw.uniform(-1, 1)], shape)  # the variance is often largest at 0, the bias at the bound
    actual = [weaker(noise, *(factor * scale for factor in factors)) for scale in (s * lower).ravel()]
    M, V = processed(operator, found.thresholds, G, actual)
    assert (np.abs(M - G) <= found.rho * np.abs(G) * (1 + 1e-9) + 1e-9 * s).all()
    assert (found.variance * s**2 * (1 + 1e-8) >= V).all()


@settings(max_examples=25)
@given(LAWS, SIDES, SIDES, OPERATORS, st.sampled_from(["post", "pre"]))
def test_never_worse_than_one_threshold_for_all_entries(noise, rows, columns, operator, stage):
    """One threshold must do for the largest scale; with per-entry ones the largest is replaced by a mean."""
    problem = {"shape": (len(rows), len(columns)), "iterations": 10, "batch": 10 if stage == "pre" else None}
    largest = max(rows) * max(columns)
    scaled = ec.theory.guarantee(stage, operator, noise, bound=1.0, **problem, scales=(rows, columns), exact_bias=True)
    single = ec.theory.guarantee(stage, operator, weaker(noise, largest), bound=largest, **problem, exact_bias=True)
    assert scaled.thresholds.max() == pytest.approx(single.threshold, rel=1e-6)
    assert scaled.rate <= single.rate * (1 + 1e-6)
    ones = (np.ones(len(rows)), np.ones(len(columns)))
    plain, trivial = (
        ec.theory.guarantee(stage, operator, noise, bound=1.0, **problem, scales=scales, exact_bias=True)
        for scales in (None, ones)
    )
    assert trivial.rate == pytest.approx(plain.rate, rel=1e-12)


def test_the_papers_closed_forms_take_scales_too():
    noise, rows, columns = Contamination(0.05, 1.0, Cauchy(1.0)), (1.0, 3.0), (2.0, 0.5, 1.0)
    found = ec.theory.guarantee("post", "hard", noise, bound=1.0, shape=(2, 3), scales=(rows, columns), iterations=7)
    assert found.threshold == pytest.approx(1 + math.sqrt(2 * math.log(8)))
    assert found.rate == pytest.approx(2 * found.threshold * math.sqrt(2 * 10 * 5.25 / 7))
    assert found.step_size == pytest.approx(math.sqrt(2 / (found.threshold**2 * 10 * 5.25 * 7)))
    assert "r_i c_j" in str(found)
    assert not found.remarks


SCALES = (np.array([0.2, 1.0, 1.0, 4.0]), np.array([0.1, 0.5, 1.0, 1.0, 2.0, 5.0]))


@pytest.mark.parametrize("noise", [StudentT(1.5), Contamination(0.2, 0.5, Laplace(4.0))], ids=str)
@pytest.mark.parametrize("operator", ["hard", "smooth"])
def test_the_error_of_a_clipped_mean(noise, operator):
    """E||mean - G||_* <= nuclear sqrt(v/N) + sqrt(r) rho ||G||_*, by 400 draws, with 10 standard errors to spare."""
    N, s = 20, torch.from_numpy(np.outer(*SCALES))
    found = ec.theory.guarantee("pre", operator, noise, bound=1.0, shape=(4, 6), scales=SCALES, iterations=1, batch=N)
    G = s * (2 * torch.rand(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1)
    e = s * noise.sample((400, N, 4, 6), torch.Generator().manual_seed(1), dtype=torch.float64)
    clipped = OPERATOR_BOUNDS[operator].operator(G + e, torch.from_numpy(found.thresholds)).mean(dim=1)
    errors = torch.linalg.matrix_norm(clipped - G, "nuc")
    bias = 2 * found.rho * float(torch.linalg.matrix_norm(G, "nuc"))
    limit = found.scales.nuclear * math.sqrt(found.variance / N) + bias
    assert float(errors.mean()) <= limit - 10 * float(errors.std()) / 20


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("operator", ["hard", "smooth"])
@pytest.mark.parametrize("stage", ["post", "pre"])
def test_runs_stay_below_the_bound(stage, operator, scaled):
    """f(X) = sum s_ij (sqrt(1 + X_ij^2) - 1) has |G_ij| <= s_ij and L = max s; 8 runs at once, with t_1.5 noise."""
    noise, scales = StudentT(1.5, 0.5), SCALES if scaled else None
    s = torch.from_numpy(np.outer(*SCALES)) if scaled else torch.ones(4, 6, dtype=torch.float64)
    generator, runs = torch.Generator().manual_seed(2), 8
    start = 3 * torch.randn(4, 6, generator=generator, dtype=torch.float64)
    gap, budget = float((s * ((1 + start**2).sqrt() - 1)).sum()), {"iterations": 200}
    if stage == "pre":
        budget["batch"] = 400
    found = ec.theory.guarantee(
        stage, operator, noise, bound=1.0, shape=(4, 6), smoothness=float(s.max()), gap=gap, scales=scales, **budget
    )
    thresholds, x, measured = torch.from_numpy(found.thresholds), start.expand(runs, 4, 6), []
    for _ in range(found.iterations):
        G = s * x / (1 + x**2).sqrt()
        norms = G.square().sum(dim=(-2, -1)) if stage == "post" else torch.linalg.matrix_norm(G, "nuc")
        measured.append(float(norms.mean()))
        e = s * noise.sample((found.batch, runs, 4, 6), generator, dtype=torch.float64)
        mean = OPERATOR_BOUNDS[operator].operator(G + e, thresholds).mean(dim=0)
        x = x - found.step_size * (mean if stage == "post" else ec.msign(mean, method="svd"))
    assert np.mean(measured) <= found.rate < measured[0]  # and the bound says more than the start does


def test_scales_as_they_are_estimated():
    """The overall scale counts with the rows, so that `noise` is the law of the entries over all their scales."""
    draw = np.random.default_rng(0)
    x = 7 * draw.standard_t(3, (40, 30)) * np.exp(draw.standard_normal(30))
    estimated = ec.diagnostics.scales(x)
    problem = {"bound": 1.0, "shape": (40, 30), "iterations": 5}
    of = lambda scales: ec.theory.guarantee("post", "hard", StudentT(3.0), **problem, scales=scales)  # noqa: E731
    found = of(estimated)
    np.testing.assert_allclose(found.thresholds * estimated.standardized, found.threshold * x)
    assert found == of((estimated.overall * estimated.rows, estimated.columns)) == of(found.scales)
    drawn = row_column_scales(torch.from_numpy(x))
    np.testing.assert_allclose(of(drawn).thresholds, found.thresholds, rtol=1e-6)


ONE = [1.0, 1.0]


@pytest.mark.parametrize(
    ("scales", "error", "words"),
    [
        (([1.0], ONE), ValueError, r"one per row and one per column of \(2, 2\), got 1 and 2"),
        (
            ([1.0, 0.0], ONE),
            ValueError,
            r"scale of row 1 \(leave rows without noise out\) must be a finite number above",
        ),
        ((ONE, [1.0, math.nan]), ValueError, "scale of column 1"),
        ((np.ones((2, 1)), ONE), ValueError, r"scales of rows must be one-dimensional, got shape \(2, 1\)"),
        ((ONE, [1.0, None]), TypeError, r"scales of columns must be a sequence of numbers, got \[1.0, None\]"),
        ((2.0, 3.0), TypeError, "scales of rows must be a sequence of numbers, got 2.0"),
        ((ONE, ONE, ONE), TypeError, r"a pair of sequences \(r, c\), or what .* one matrix x; got one of type tuple"),
        (2.0, TypeError, "got one of type float"),
        (ec.diagnostics.scales(np.ones((3, 2, 2))), ValueError, r"one matrix, got those of a batch \(3,\): .*x\[0\]"),
        (ec.diagnostics.scales(np.diag([1.0, 0.0])), ValueError, "scale of row 1"),
    ],
)
def test_bad_scales(scales, error, words):
    with pytest.raises(error, match=words):
        ec.theory.guarantee("post", "hard", Laplace(), bound=1.0, shape=(2, 2), scales=scales, iterations=5)
