"""The rates of the four theorems over random problems: as the paper writes them, and never below the exact ones."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import LAWS, SCALE

import entryclip as ec
from entryclip.noise import Cauchy, Contamination

PAPER = st.builds(Contamination, st.floats(0.01, 1), st.one_of(st.just(0.0), SCALE), st.builds(Cauchy, SCALE))
SIDES = st.integers(1, 64)
ROUND = 1 + 1e-8


@st.composite
def guarantees(draw):
    """A theorem's guarantee for a random problem, by the paper's closed forms or by the exact bias."""
    stage, shape = draw(st.sampled_from(["post", "pre"])), (draw(SIDES), draw(SIDES))
    noise = draw(st.one_of(LAWS, PAPER))
    spread = np.random.default_rng(draw(st.integers(0, 10**6)))
    problem = {
        "bound": draw(st.floats(0.01, 10)),
        "shape": shape,
        "smoothness": draw(st.floats(0.01, 100)),
        "gap": draw(st.floats(0.01, 100)),
        "iterations": draw(st.integers(1, 10**6)),
        "batch": draw(st.integers(1, 10**6)) if stage == "pre" else None,
        "exact_bias": draw(st.sampled_from([None, True])),
        "scales": tuple(np.exp(spread.standard_normal(side)) for side in shape) if draw(st.booleans()) else None,
    }
    arguments = stage, draw(st.sampled_from(["hard", "smooth"])), noise
    smallest = ec.theory.guarantee(*arguments, **problem)
    times = draw(st.one_of(st.just(1.0), st.floats(1, 10)))
    return ec.theory.guarantee(*arguments, **problem, threshold=times * smallest.threshold)


@given(guarantees())
def test_rates_over_random_shapes(found):
    """eq:post-hard-main-rate and the other three; with scales, sums over s_ij = r_i c_j replace the powers of m, n."""
    (m, n), product = found.shape, found.smoothness * found.gap
    r, D = min(m, n), math.sqrt(max(m, n) / min(m, n))
    root_d, spread = math.sqrt(m * n), D * r**1.5
    if found.scales:
        s = np.outer(found.scales.rows, found.scales.columns)
        root_d, spread = np.linalg.norm(s), min(np.linalg.norm(s, axis=axis).sum() for axis in (0, 1))
    if found.stage == "post":
        R = found.threshold if found.operator == "hard" else found.threshold / math.e
        assert found.rate == pytest.approx(2 * R * math.sqrt(2 * product / found.iterations) * root_d)
    else:
        second = 4 * spread * math.sqrt(found.variance / found.batch)
        assert found.rate == pytest.approx(2 * math.sqrt(2 * product * r / found.iterations) + second)


@given(guarantees())
def test_exact_values_are_below_the_bounds(found):
    """rho <= 1/2 or 1/(4 sqrt r), exact bias and variance are at most the bounds on them, and so is the rate."""
    rho, variance = found.exact
    assert found.rho <= (0.5 if found.stage == "post" else 0.25 / math.sqrt(min(found.shape))) * ROUND
    assert 0 <= rho <= found.rho * ROUND + 1e-12
    assert 0 <= variance <= found.variance * ROUND + 1e-14 * found.threshold**2
    assert found.sharper_rate <= found.rate * ROUND


@given(guarantees())
def test_the_sharper_rate_sums_the_descent_of_all_steps(found):
    """eq:post-relative-rate-app, eq:pre-relative-rate-app: the sum of the lemmas' steps at the guarantee's step size.

    A step descends by eta (1 - rho) ||G||_F^2 or eta (1 - 2 sqrt(r) rho) ||G||_*, less L eta^2 / 2 times the square of
    the update's length and, for pre-clipping, 2 eta E||mean - M||_*. All together descend by at most the gap.
    """
    rho, variance = found.exact
    r, scales = min(found.shape), found.scales or ec.theory.scales.Scales.ones(found.shape)
    eta, L = found.step_size, found.smoothness
    if found.stage == "post":
        R = found.threshold if found.operator == "hard" else found.threshold / math.e
        loss, share = L * eta**2 / 2 * (R * scales.frobenius) ** 2, 1 - rho
    else:
        noise = 2 * eta * scales.nuclear * math.sqrt(variance / found.batch)
        loss, share = L * eta**2 / 2 * r + noise, 1 - 2 * math.sqrt(r) * rho
    total = (found.gap / found.iterations + loss) / (eta * share)
    assert found.sharper_rate == pytest.approx(total)
    assert found.rate >= total / ROUND
