"""The four theorems: their numbers as the paper prints them, the descent lemmas on random matrices, refusals."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import entryclip as ec
from entryclip.noise.moments import moments
from entryclip.theory import entry

NOISE = ec.noise.Contamination(0.05, 1.0, ec.noise.Cauchy(2.0))
PROBLEM = {"bound": 1.5, "shape": (6, 10), "smoothness": 3.0, "gap": 0.7}
FOUR = [(stage, operator) for stage in ("post", "pre") for operator in ("hard", "smooth")]
SIDES = st.integers(1, 6)


def test_the_numbers_of_the_papers_theorems():
    """Written out for B = 1.5, sigma = 1, alpha = .05, gamma = 2, m x n = 6 x 10, L = 3, Delta = .7, epsilon = .3."""
    a, s, g, B, d, r, L, delta, eps = 0.05, 1.0, 2.0, 1.5, 60, 6, 3.0, 0.7, 0.3
    D, e, pi, root = math.sqrt(10 / 6), math.e, math.pi, math.sqrt(6)
    found = {key: ec.theory.guarantee(*key, NOISE, **PROBLEM, epsilon=eps) for key in FOUR}

    tau = B + max(s * math.sqrt(2 * math.log(8)), 8 * a * g / pi)
    post = found["post", "hard"]
    assert (post.threshold, post.iterations) == (pytest.approx(tau), math.ceil(8 * L * delta * d * tau**2 / eps**4))
    assert post.step_size == pytest.approx(math.sqrt(2 * delta / (L * tau**2 * d * post.iterations)))
    assert post.rate == pytest.approx(2 * tau * math.sqrt(2 * L * delta * d / post.iterations))

    c = max(4 * (B + math.sqrt(8 / pi) * (1 - a) * s), 64 * a * g / pi * math.log(e + 64 * a / pi))
    post = found["post", "smooth"]
    expected = math.ceil(8 * L * delta * d * c**2 / (e**2 * eps**4))
    assert (post.threshold, post.iterations) == (pytest.approx(c), expected)
    assert post.step_size == pytest.approx(e * math.sqrt(2 * delta / (L * c**2 * d * post.iterations)))
    assert post.rate == pytest.approx(2 * c / e * math.sqrt(2 * L * delta * d / post.iterations))

    tau = B + max(s * math.sqrt(2 * math.log(16 * root)), 16 * a * g * root / pi)
    c = max(
        8 * root * (B + math.sqrt(8 / pi) * (1 - a) * s), 128 * a * g * root / pi * math.log(e + 128 * a * root / pi)
    )
    v = {"hard": (1 - a) * s**2 + 4 * a * g * tau / pi, "smooth": (1 - a) * s**2 + 8 * a * g * c / (pi * e)}
    for operator, threshold in (("hard", tau), ("smooth", c)):
        pre = found["pre", operator]
        assert (pre.threshold, pre.variance) == pytest.approx((threshold, v[operator]))
        assert pre.iterations == math.ceil(32 * L * r * delta / eps**2)
        assert pre.batch == math.ceil(64 * D**2 * r**3 * v[operator] / eps**2)
        assert pre.samples == pre.iterations * pre.batch
        assert pre.step_size == pytest.approx(math.sqrt(2 * delta / (L * r * pre.iterations)))
        second = 4 * D * r**1.5 * math.sqrt(v[operator] / pre.batch)
        assert pre.rate == pytest.approx(2 * math.sqrt(2 * L * r * delta / pre.iterations) + second)


@pytest.mark.parametrize(("stage", "operator"), FOUR)
def test_epsilon_is_met_and_hardly_more(stage, operator):
    found = ec.theory.guarantee(stage, operator, NOISE, **PROBLEM, epsilon=0.2)
    assert 0.99 * 0.2 < found.stationarity <= 0.2
    again = ec.theory.guarantee(
        stage, operator, NOISE, **PROBLEM, iterations=found.iterations, batch=found.batch if stage == "pre" else None
    )
    assert again == found
    assert found.rho <= (0.5 if stage == "post" else 0.25 / math.sqrt(6))
    assert found.exact.rho <= found.rho
    assert found.exact.variance <= found.variance
    assert found.sharper_rate < found.rate
    assert f"thm:{stage}-{operator}-main" in str(found)
    assert "nan" not in str(found)


@pytest.mark.parametrize(("stage", "operator"), FOUR)
def test_the_rate_is_that_of_the_lemma_at_its_worst_rho(stage, operator):
    """lem:post-relative-descent-app and lem:pre-relative-descent-app with rho = 1/2, 1/(4 sqrt r): the theorems'."""
    budget = {"iterations": 400} if stage == "post" else {"iterations": 400, "batch": 50}
    found = ec.theory.guarantee(stage, operator, NOISE, **PROBLEM, **budget)
    m, n = PROBLEM["shape"]
    L, delta, d, r, D = PROBLEM["smoothness"], PROBLEM["gap"], m * n, min(m, n), math.sqrt(max(m, n) / min(m, n))
    R = found.threshold if operator == "hard" else found.threshold / math.e
    rho, v = found.exact
    if stage == "post":
        assert found.rate == pytest.approx(R / (1 - 1 / 2) * math.sqrt(2 * L * delta * d / 400))
        assert found.sharper_rate == pytest.approx(R / (1 - rho) * math.sqrt(2 * L * delta * d / 400))
    else:
        top = lambda v: math.sqrt(2 * L * r * delta / 400) + 2 * D * r**1.5 * math.sqrt(v / 50)  # noqa: E731
        assert found.rate == pytest.approx(top(found.variance) / (1 - 1 / 2))
        assert found.sharper_rate == pytest.approx(top(v) / (1 - 2 * math.sqrt(r) * rho))


def test_a_larger_threshold_and_growing_budgets():
    smallest = ec.theory.guarantee("post", "hard", NOISE, **PROBLEM, iterations=100)
    larger = ec.theory.guarantee("post", "hard", NOISE, **PROBLEM, iterations=100, threshold=2 * smallest.threshold)
    assert larger.rate == pytest.approx(2 * smallest.rate)
    assert larger.rho < smallest.rho
    longer = ec.theory.guarantee("post", "hard", NOISE, **PROBLEM, iterations=400)
    assert longer.rate == pytest.approx(smallest.rate / 2)


@given(SIDES, SIDES, st.integers(0, 10**6), st.floats(0.01, 5), st.floats(0.01, 3), st.floats(0.1, 5))
def test_matrix_sign_descent(m, n, seed, spread, eta, L):
    """lem:matrix-sign-descent-app, on f(X) = <G, X> + L/2 ||X||^2 at X = 0, where smoothness holds with equality."""
    generator = torch.Generator().manual_seed(seed)
    G, E = torch.randn(2, m, n, generator=generator, dtype=torch.float64)
    E = spread * E
    step = -eta * ec.msign(G + E, method="svd")
    change = float((G * step).sum() + L / 2 * step.square().sum())
    nuclear = lambda x: float(torch.linalg.matrix_norm(x, "nuc"))  # noqa: E731
    bound = -eta * nuclear(G) + 2 * eta * nuclear(E) + L * eta**2 * min(m, n) / 2
    assert change <= bound + 1e-9 * (1 + abs(bound))


@given(SIDES, SIDES, st.integers(0, 10**6), st.sampled_from(["hard", "smooth"]), st.floats(0, 1), st.floats(0.01, 3))
def test_alignment_and_absorption(m, n, seed, operator, alpha, gamma):
    """eq:post-frob-rel-app, eq:post-alignment-principle-app and eq:pre-bias-principle-app: the exact processed mean."""
    noise = ec.noise.Contamination(alpha, 1.0, ec.noise.Cauchy(gamma))
    G = np.random.default_rng(seed).uniform(-1, 1, (m, n))
    r = min(m, n)
    for slack, absorbed in ((0.5, False), (0.25 / math.sqrt(r), True)):
        bounds = entry.OPERATOR_BOUNDS[operator]
        threshold = bounds.threshold(noise, 1.0, slack)
        rho = bounds.rho(threshold, noise, 1.0)
        M = moments(bounds.operator, threshold, G.ravel(), noise).mean.reshape(m, n)
        frobenius, nuclear = np.linalg.norm(G), np.linalg.norm(G, "nuc")
        assert np.linalg.norm(M - G) <= rho * frobenius + 1e-9
        assert (G * M).sum() >= (1 - rho) * frobenius**2 - 1e-9
        assert np.linalg.norm(M - G, "nuc") <= math.sqrt(r) * rho * nuclear + 1e-9
        if absorbed:
            assert 2 * math.sqrt(r) * rho <= 0.5 + 1e-9


def test_the_error_of_a_clipped_mean():
    """eq:pre-error-bound-app by drawing: E||mean - G||_* <= D r^1.5 sqrt(v/N) + sqrt(r) rho ||G||_*."""
    noise, (m, n), N = ec.noise.Contamination(0.1, 1.0, ec.noise.Cauchy(1.0)), (5, 8), 20
    G = torch.rand(m, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for operator in ("hard", "smooth"):
        found = ec.theory.guarantee("pre", operator, noise, bound=1.0, shape=(m, n), iterations=1, batch=N)
        draws = G + noise.sample((400, N, m, n), torch.Generator().manual_seed(1), dtype=torch.float64)
        clipped = entry.OPERATOR_BOUNDS[operator].operator(draws, found.threshold).mean(dim=1)
        error = float(torch.linalg.matrix_norm(clipped - G, "nuc").mean())
        nuclear = float(torch.linalg.matrix_norm(G, "nuc"))
        assert error <= math.sqrt(8 / 5) * 5**1.5 * math.sqrt(found.variance / N) + math.sqrt(5) * found.rho * nuclear


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stage": "mid"}, "stage must be post or pre, got 'mid'"),
        ({"operator": "soft"}, "operator must be one of hard, smooth, got 'soft'"),
        ({"noise": ec.noise.StudentT(2.0), "exact_bias": False}, r"closed forms cover .* only, got StudentT\(nu=2.0"),
        (
            {"noise": ec.noise.Contamination(0.1, 1.0, ec.noise.Laplace()), "exact_bias": False},
            "exact bias for other laws",
        ),
        ({"shape": (3,)}, "shape must be two integers >= 1"),
        ({"shape": (3, 0)}, "shape must be two integers >= 1"),
        ({"bound": -1.0}, "bound must be a finite number >= 0, got -1.0"),
        ({"smoothness": 0.0}, "smoothness must be a finite number above 0"),
        ({"gap": math.inf}, "gap must be a finite number above 0, got inf"),
        ({"epsilon": 0.0}, "epsilon must be a finite number above 0"),
        ({"epsilon": None}, "give either epsilon or iterations"),
        ({"iterations": 5}, "give either epsilon or iterations"),
        ({"epsilon": None, "iterations": 0}, "iterations must be an integer >= 1, got 0"),
        ({"batch": 3}, "one sample per iteration, got batch=3"),
        ({"stage": "pre", "epsilon": None, "iterations": 5}, "pre-clipping needs a batch"),
        ({"stage": "pre", "batch": 5}, "epsilon decides the batch"),
        ({"threshold": 2.0}, "a finite threshold of at least 3.5"),
        ({"threshold": math.nan}, "a finite threshold of at least 3.5"),
        ({"noise": ec.noise.Gaussian(0.0)}, "a finite threshold of at least 1.5"),
    ],
)
def test_bad_input(change, words):
    arguments = {"stage": "post", "operator": "hard", "noise": NOISE, **PROBLEM, "epsilon": 0.1} | change
    stage, operator, noise = (arguments.pop(name) for name in ("stage", "operator", "noise"))
    with pytest.raises(ValueError, match=words):
        ec.theory.guarantee(stage, operator, noise, **arguments)


@pytest.mark.parametrize(
    "noise",
    [
        ec.noise.Subspace(2),
        ec.noise.LowRankSum(2),
        ec.noise.Spike(3.0),
        ec.noise.HeavyLowRank(2, ec.noise.Cauchy()),
        ec.noise.Aligned(torch.eye(6, 10)),
        ec.noise.fit(torch.linspace(-1, 1, 100)),
        None,
    ],
    ids=lambda noise: type(noise).__name__,
)
def test_noise_that_is_no_law_of_an_entry(noise):
    for exact_bias in (None, True, False):
        with pytest.raises(
            TypeError, match=f"law of one entry: Gaussian, .* got one of type {type(noise).__name__}. .*fit"
        ):
            ec.theory.guarantee("post", "hard", noise, **PROBLEM, epsilon=0.1, exact_bias=exact_bias)
