"""One step of the two descent lemmas, with exact expectations: the length of an update, its descent, a mean's error."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import LAWS, WEAKER, processed, weaker
from scipy.linalg import hadamard

import entryclip as ec
from entryclip.noise import Cauchy, Contamination
from entryclip.theory.entry import OPERATOR_BOUNDS, relative_bias
from entryclip.theory.scales import Scales

SIDES = st.lists(st.floats(0.05, 20), min_size=1, max_size=5)
ONES = st.integers(1, 5).map(lambda count: [1.0] * count)
SIDE = st.one_of(ONES, SIDES)
SEEDS = st.integers(0, 10**6)
OPERATORS = st.sampled_from(["hard", "smooth"])


def nuclear(x):
    """The nuclear norms of matrices (..., m, n)."""
    return np.linalg.svd(x, compute_uv=False).sum(-1)


@given(SIDE, SIDE, SEEDS, st.floats(1, 10), OPERATORS)
def test_length_of_a_post_clipped_update(rows, columns, seed, times, operator):
    """||phi||_F^2 <= R^2 |r|^2 |c|^2, R^2 m n without scales, for any input; |x| = t r_i c_j attains it."""
    noise, problem = (
        Contamination(0.1, 1.0, Cauchy(2.0)),
        {"bound": 1.0, "iterations": 3, "gap": 0.3, "smoothness": 5.0},
    )
    problem |= {"shape": (len(rows), len(columns)), "scales": (rows, columns)}
    smallest = ec.theory.guarantee("post", operator, noise, **problem)
    found = ec.theory.guarantee("post", operator, noise, **problem, threshold=times * smallest.threshold)
    limit = math.sqrt(2 * 0.3 / (5.0 * 3)) / found.step_size  # R |r| |c|, as the guarantee has it
    clip, draw = OPERATOR_BOUNDS[operator].operator, np.random.default_rng(seed)
    signs = draw.choice([-1, 1], found.shape)
    for size in (draw.uniform(0, 3, found.shape), 10 ** draw.uniform(-2, 4, found.shape)):
        assert np.linalg.norm(clip(signs * size * found.thresholds, found.thresholds)) <= limit * (1 + 1e-12)
    assert np.linalg.norm(clip(signs * found.thresholds, found.thresholds)) == pytest.approx(limit)


@given(LAWS, SIDE, SIDE, SEEDS, st.floats(1, 20), WEAKER, st.floats(-4, 4), st.floats(0.1, 5), OPERATORS)
def test_post_descent(noise, rows, columns, seed, threshold, factors, size, L, operator):
    """lem:post-relative-descent-app: E f(X_1) <= f(X_0) - eta (1 - rho) ||G||_F^2 + L eta^2 R^2 |r|^2 |c|^2 / 2.

    On f(X) = <G, X> + L/2 ||X||^2 at X = 0, where smoothness holds with equality; the noise may be weaker than rho's.
    """
    scales, draw, eta = Scales.of(rows, columns), np.random.default_rng(seed), 10**size
    s = np.outer(rows, columns)
    G = s * draw.choice([-1, 1], s.shape) * np.minimum(draw.uniform(0, 1, s.shape) * draw.integers(1, 99), 1)  # B = 1
    rho = relative_bias(operator, threshold, noise, 1.0)
    actual = [weaker(noise, *(factor * scale for factor in factors)) for scale in s.ravel()]
    M, V = processed(operator, scales.thresholds(threshold), G, actual)
    change = -eta * (G * M).sum() + L * eta**2 / 2 * (M**2 + V).sum()
    descent = eta * (1 - rho) * (G**2).sum()
    growth = L * eta**2 / 2 * (OPERATOR_BOUNDS[operator].peak * threshold * scales.frobenius) ** 2
    assert change <= growth - descent + 1e-8 * (growth + descent)


@given(SIDE, SIDE, SEEDS, st.integers(2, 4), st.integers(1, 3), st.booleans(), OPERATORS)
def test_error_of_a_mean(rows, columns, seed, atoms, N, signs, operator):
    """eq:pre-error-bound-app without the bias, and with scales: E||mean - M||_* <= nuclear sqrt(v/N).

    The noise has a few values, so the expectation over N draws is a sum; its entries depend on each other, as they may.
    """
    s, draw = np.outer(rows, columns), np.random.default_rng(seed)
    if signs:  # all entries have the same variance, over s^2: here the bound is nearly attained
        x = draw.choice([-1.0, 1.0], s.shape)
        x, weight = s * np.stack([x, -x]), np.full(2, 0.5)
    else:
        x, weight = s * draw.standard_cauchy((atoms, *s.shape)), draw.dirichlet(np.ones(atoms))
    Y = OPERATOR_BOUNDS[operator].operator(x, s)
    M = np.tensordot(weight, Y, 1)
    V = np.tensordot(weight, (Y - M) ** 2, 1)
    chosen = np.array(list(itertools.product(range(len(Y)), repeat=N)))
    expected = weight[chosen].prod(1) @ nuclear(Y[chosen].mean(1) - M) - 1e-12 * s.max()  # Y may be all the same
    r, D = min(s.shape), math.sqrt(max(s.shape) / min(s.shape))
    assert expected <= D * r**1.5 * math.sqrt(V.max() / N) * (1 + 1e-9)
    assert expected <= Scales.of(rows, columns).nuclear * math.sqrt((V / s**2).max() / N) * (1 + 1e-9)


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_error_of_a_mean_where_the_bound_is_attained(n):
    """Signs with orthogonal rows, of any scale; noise of + and - this matrix has always the same nuclear norm."""
    rows = np.geomspace(0.1, 10, n)
    x = rows[:, None] * hadamard(n)
    assert nuclear(x) == pytest.approx(Scales.of(rows, np.ones(n)).nuclear)
    assert nuclear(hadamard(n)) == pytest.approx(n**1.5) == pytest.approx(Scales.ones((n, n)).nuclear)


@settings(max_examples=60)
@given(LAWS, SIDE, SIDE, SEEDS, WEAKER, st.integers(1, 5), OPERATORS)
def test_error_of_a_mean_by_drawing(noise, rows, columns, seed, factors, N, operator):
    """The variance of the guarantee, and noise that may be weaker; 300 draws of each of 60 cases.

    The sample mean may be 5 standard errors above the bound: by chance once in 5 10^4 runs, were it attained always.
    """
    s, shape = np.outer(rows, columns), (len(rows), len(columns))
    problem = {"bound": 1.0, "shape": shape, "scales": (rows, columns), "iterations": 1, "batch": N}
    found = ec.theory.guarantee("pre", operator, noise, **problem, exact_bias=True)
    actual, generator = weaker(noise, *factors), torch.Generator().manual_seed(seed)
    G = s * (2 * torch.rand(shape, generator=generator, dtype=torch.float64).numpy() - 1)
    e = s * actual.sample((300, N, *shape), generator, dtype=torch.float64).numpy()
    M, _ = processed(operator, found.thresholds, G, [weaker(actual, scale) for scale in s.ravel()])
    errors = nuclear(OPERATOR_BOUNDS[operator].operator(G + e, found.thresholds).mean(1) - M)
    limit = found.scales.nuclear * math.sqrt(found.variance / N)
    assert errors.mean() <= limit * (1 + 1e-9) + 5 * errors.std() / math.sqrt(300)
