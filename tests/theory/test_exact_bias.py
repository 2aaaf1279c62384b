"""Guarantees by the exact bias, for every symmetric law: each step of the argument, against quadrature and draws."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import APART, BULK, FACTOR, LAWS, weaker
from scipy import integrate

import entryclip as ec
from entryclip.noise import Cauchy, Contamination, Gaussian, Laplace, StudentT
from entryclip.noise.moments import moments
from entryclip.theory import entry
from entryclip.theory.entry import OPERATOR_BOUNDS, relative_bias
from entryclip.theory.exact_bias import smallest_threshold, variance_bound

OPERATORS = st.sampled_from(["hard", "smooth"])
ROUND = 1 + 1e-8
EXAMPLES = [
    StudentT(0.1),
    StudentT(1.5, 0.5),
    StudentT(4.0),
    Laplace(2.0),
    Contamination(0.1, 1.0, StudentT(0.6, 3.0)),
    Contamination(0.2, 0.5, Laplace(4.0)),
    Contamination(0.05, 1.0, Gaussian(10.0)),
]


@given(st.floats(0.05, 5), st.floats(0.05, 5), st.floats(0.05, 20), OPERATORS)
def test_gaussian_bias_as_a_mean_over_lengths_in_three_dimensions(g, sigma, threshold, operator):
    """E phi(g + e) / g = E w(|g e_1 + sigma Z|), where the length is noncentral chi with 3 degrees of freedom."""
    weight = {"hard": lambda x: min(1.0, threshold / x), "smooth": lambda x: math.exp(-x / threshold)}[operator]

    def integrand(x):
        density = math.exp(-(((x - g) / sigma) ** 2) / 2) * -math.expm1(-2 * x * g / sigma**2)
        return weight(x) * density * x / (g * sigma * math.sqrt(2 * math.pi))

    end = g + 40 * sigma
    points = sorted({min(max(x, 1e-9), end) for x in (g - 5 * sigma, g, g + 5 * sigma, threshold)})
    mean, _ = integrate.quad(integrand, 1e-12, end, points=points, limit=200, epsabs=1e-11)
    assert relative_bias(operator, threshold, Gaussian(sigma), g) == pytest.approx(1 - mean, abs=1e-8)


@given(LAWS, st.floats(0.01, 10), st.floats(0.05, 50), OPERATORS)
def test_the_bias_is_worst_at_the_bound_and_falls_with_the_threshold(noise, bound, threshold, operator):
    g = bound * np.array([1e-3, 0.1, 0.3, 0.6, 0.9, 1.0])
    bias = 1 - moments(OPERATOR_BOUNDS[operator].operator, threshold, g, noise).mean / g
    assert (np.diff(bias) >= -1e-9).all()
    assert bias[0] >= -1e-9
    assert bias[-1] <= 1 + 1e-9
    assert relative_bias(operator, threshold, noise, bound) == pytest.approx(bias[-1], abs=1e-9)
    larger = [relative_bias(operator, factor * threshold, noise, bound) for factor in (1, 1.1, 2, 10, 1e6)]
    assert (np.diff(larger) <= 1e-9).all()


@given(st.one_of(LAWS, APART), st.floats(0.01, 10), st.floats(1, 20), FACTOR, BULK, OPERATORS)
def test_weaker_noise_has_no_larger_bias_above_the_bound(noise, bound, times, factor, bulk, operator):
    """Where the threshold is at least B, and however the scales of the two parts are lowered (ass:noise-main)."""
    threshold = times * bound
    weak = relative_bias(operator, threshold, weaker(noise, factor, bulk), bound)
    assert weak <= relative_bias(operator, threshold, noise, bound) + 1e-9


def test_weaker_noise_can_have_a_larger_bias_below_the_bound():
    """The condition on the threshold is needed: far beyond c noise brings entries back to where S_c is large."""
    assert relative_bias("smooth", 0.2, Gaussian(0.01), 1.0) > relative_bias("smooth", 0.2, Gaussian(0.5), 1.0)


@settings(max_examples=150)
@given(st.one_of(LAWS, APART), st.floats(0.01, 10), st.floats(1, 20), FACTOR, BULK, OPERATORS)
def test_variance_bound(noise, bound, times, factor, bulk, operator):
    """Over all |g| <= B, for the noise itself and for weaker noise, each part with a factor of its own."""
    threshold = times * bound
    g = bound * np.linspace(0, 1, 7)
    limit = variance_bound(operator, threshold, noise, bound)
    for actual in (noise, weaker(noise, factor, bulk)):
        variance = moments(OPERATOR_BOUNDS[operator].operator, threshold, g, actual).variance
        assert (variance <= limit * ROUND + 1e-14 * threshold**2).all()


@given(LAWS, st.floats(0.01, 10), st.floats(1, 20), st.floats(0, 1), OPERATORS)
def test_the_exact_variance_is_the_worst_over_the_gradient(noise, bound, times, share, operator):
    """Up to the step of the grid, on which it is searched; g = 0, where S_c is steepest, is on it."""
    threshold = times * bound
    g = bound * np.array([0.0, share])
    variance = moments(OPERATOR_BOUNDS[operator].operator, threshold, g, noise).variance
    worst = entry.exact(operator, threshold, noise, bound).variance
    assert (variance <= worst * np.array([ROUND, 1.0005]) + 1e-14 * threshold**2).all()


def test_weaker_noise_can_have_a_larger_exact_variance():
    """Entries far beyond c shrink to nothing. So the sharper rate of pre-clipping needs noise that stays as it is."""
    noise, weak = (Contamination(0.1, 0.1, Cauchy(gamma)) for gamma in (1e6, 5.0))
    found = ec.theory.guarantee("pre", "smooth", noise, bound=1.0, shape=(1, 1), epsilon=0.1, exact_bias=True)
    rho, variance = entry.exact("smooth", found.threshold, weak, 1.0)
    assert rho <= found.exact.rho
    assert 3 * found.exact.variance < variance <= found.variance


def test_the_variance_bound_leaves_room_on_both_sides():
    """Under endless noise Q(a) = a^2; at s = R there is room for 2R below, and above for 0 (hard) or R (S_c falls)."""
    hard, smooth = (variance_bound(operator, 1.0, Gaussian(1e9), 1.0) for operator in ("hard", "smooth"))
    assert hard == pytest.approx(4 / 2, rel=1e-3)
    assert smooth == pytest.approx((1 + 4) / 2 / math.e**2, rel=1e-3)


@settings(max_examples=30)
@given(LAWS, st.one_of(st.just(0.0), st.floats(0.01, 10)), st.integers(1, 10**4), OPERATORS)
def test_smallest_threshold(noise, bound, rank, operator):
    """The relative bias is at most the slack, and a threshold 1 % smaller, if not below B, would not do."""
    for slack in (0.5, 0.25 / math.sqrt(rank)):
        threshold = smallest_threshold(operator, noise, bound, slack)
        assert threshold >= bound
        assert relative_bias(operator, threshold, noise, bound) <= slack
        if bound < 0.99 * threshold and threshold > 1e-6:
            assert relative_bias(operator, 0.99 * threshold, noise, bound) > slack


@settings(max_examples=30)
@given(st.floats(0, 1), st.floats(0, 5), st.floats(0.01, 5), st.floats(0.01, 5), st.integers(1, 1000), OPERATORS)
def test_never_above_the_papers_closed_forms(alpha, sigma, gamma, bound, rank, operator):
    noise, paper = Contamination(alpha, sigma, Cauchy(gamma)), OPERATOR_BOUNDS[operator]
    for slack in (0.5, 0.25 / math.sqrt(rank)):
        threshold = smallest_threshold(operator, noise, bound, slack)
        assert threshold <= paper.threshold(noise, bound, slack) * ROUND
        assert variance_bound(operator, threshold, noise, bound) <= paper.variance(threshold, noise) * ROUND


@given(LAWS, st.floats(0.01, 1e6))
def test_without_a_gradient_the_bias_of_hard_clipping_is_the_tail(noise, threshold):
    assert relative_bias("hard", threshold, noise, 0.0) == pytest.approx(2 * float(noise.cdf(-threshold)), abs=1e-9)


@pytest.mark.parametrize("noise", EXAMPLES, ids=str)
@pytest.mark.parametrize("operator", ["hard", "smooth"])
def test_both_ways_to_the_bias_agree(noise, operator):
    """Far below the threshold the bias is a mean of slopes, else a difference: they meet at B = 1e-4 thresholds."""
    low, high = (relative_bias(operator, 5.0, noise, factor * 5e-4) for factor in (0.999999, 1.000001))
    assert low == pytest.approx(high, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("noise", EXAMPLES, ids=str)
@pytest.mark.parametrize("operator", ["hard", "smooth"])
def test_bias_and_variance_by_drawing(noise, operator):
    """Within 5 standard errors of 10^6 draws, 14 cases: the one-sided bounds would alarm falsely once in 10^5 runs."""
    bound, slack = 0.7, 0.2
    threshold = smallest_threshold(operator, noise, bound, slack)
    limit = variance_bound(operator, threshold, noise, bound)
    e = noise.sample((10**6,), torch.Generator().manual_seed(0), dtype=torch.float64)
    for g in (0.1, bound):
        draws = OPERATOR_BOUNDS[operator].operator(g + e, threshold).numpy()
        error = draws.std() / 1e3
        assert abs(draws.mean() - g) <= slack * g + 5 * error
        assert draws.var() <= limit + 5 * ((draws - draws.mean()) ** 2).std() / 1e3
        if g == bound and threshold > bound:  # the root is sharp
            assert draws.mean() - g == pytest.approx(-slack * g, abs=5 * error)


@pytest.mark.parametrize("noise", EXAMPLES, ids=str)
def test_guarantees(noise):
    for stage, operator in [(s, o) for s in ("post", "pre") for o in ("hard", "smooth")]:
        found = ec.theory.guarantee(stage, operator, noise, bound=1.0, shape=(6, 10), epsilon=0.3)
        assert found.from_exact_bias
        assert 0.99 * 0.3 < found.stationarity <= 0.3
        assert found.rho <= (0.5 if stage == "post" else 0.25 / math.sqrt(6))
        assert found.exact.rho == pytest.approx(found.rho, abs=1e-9)
        assert found.exact.variance <= found.variance * ROUND
        assert found.sharper_rate <= found.rate * ROUND
        R = found.threshold if operator == "hard" else found.threshold / math.e
        if stage == "post":
            assert found.rate == pytest.approx(2 * R * math.sqrt(2 * 60 / found.iterations))
            assert found.step_size == pytest.approx(math.sqrt(2 / (R**2 * 60 * found.iterations)))
        else:
            second = 4 * math.sqrt(10 / 6) * 6**1.5 * math.sqrt(found.variance / found.batch)
            assert found.rate == pytest.approx(2 * math.sqrt(2 * 6 / found.iterations) + second)
        assert f"(thm:{stage}-{operator}-main, exact bias)" in str(found)


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (StudentT(4.0), "finite variance, which Cauchy noise has not"),
        (Laplace(), "finite variance"),
        (StudentT(2.0), "like the logarithm of the threshold (tail index 2)"),
        (StudentT(0.5), "like threshold^1.5 (tail index 0.5)"),
        (Cauchy(), "like the threshold, as Cauchy's does"),
    ],
)
def test_remarks_name_the_steps_that_need_cauchy(noise, words):
    found = ec.theory.guarantee("pre", "hard", noise, bound=1.0, shape=(4, 4), epsilon=0.5, exact_bias=True)
    text = str(found)
    for label in ("eq:cauchy-tail-app", "lem:log-device-app", "eq:cauchy-trunc-two-sided-app", words):
        assert label in text
    if isinstance(noise, Cauchy):
        assert ec.theory.guarantee("pre", "hard", noise, bound=1.0, shape=(4, 4), epsilon=0.5).remarks == ()


def test_the_variance_grows_as_the_remarks_say():
    for nu in (0.5, 1.5):
        low, high = (variance_bound("hard", tau, StudentT(nu), 0.0) for tau in (1e8, 1e9))
        assert math.log10(high / low) == pytest.approx(2 - nu, abs=1e-2)
    assert variance_bound("hard", 1e9, StudentT(4.0), 0.0) == pytest.approx(2.0, rel=1e-6)
    low, high = (variance_bound("hard", tau, StudentT(2.0), 0.0) for tau in (1e4, 1e8))
    assert high == pytest.approx(2 * low, rel=0.15)


def test_exact_bias_on_request_for_the_papers_noise():
    noise = Contamination(0.05, 1.0, Cauchy(1.0))
    problem = {"bound": 1.0, "shape": (8, 8), "iterations": 100}
    paper, exact = (ec.theory.guarantee("post", "smooth", noise, **problem, exact_bias=x) for x in (None, True))
    assert not paper.from_exact_bias
    assert exact.threshold < paper.threshold / 3
    assert exact.rate == pytest.approx(paper.rate * exact.threshold / paper.threshold)
    larger = ec.theory.guarantee("post", "smooth", noise, **problem, exact_bias=True, threshold=2 * exact.threshold)
    assert larger.rho < exact.rho


def test_a_point_mass_needs_no_more_than_the_bound():
    assert smallest_threshold("hard", Gaussian(0.0), 2.0, 0.01) == 2.0
    assert smallest_threshold("smooth", Gaussian(0.0), 2.0, 0.5) == pytest.approx(2 / math.log(2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: smallest_threshold("hard", Gaussian(0.0), 0.0, 0.5), "with bound 0 and no noise"),
        (lambda: smallest_threshold("hard", StudentT(0.01), 1.0, 0.01), "its tail is too heavy"),
        (lambda: variance_bound("hard", 1.0, Cauchy(), 2.0), "thresholds of at least the bound 2, got 1"),
        (lambda: relative_bias("soft", 1.0, Cauchy(), 2.0), "one of hard, smooth, got 'soft'"),
        (lambda: entry.rho_hard(3.0, Laplace(), 1.0), "closed forms cover .* only, got Laplace"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError, match=words):
        call()
