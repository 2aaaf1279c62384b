"""The regression study: its arithmetic against plain loops, and a small run of it."""

import itertools

import numpy as np
import pytest
import torch

import entryclip as ec
from entryclip.lab.paper.regression import STUDY
from entryclip.lab.paper.regression.arms import ARM_METHODS, Arm, GradientStep, RunningSquare
from entryclip.lab.paper.regression.descent import descend
from entryclip.lab.paper.regression.problem import Problem, make_noise
from entryclip.lab.paper.regression.results import RegressionResults
from entryclip.lab.paper.regression.rows import best_of
from entryclip.lab.paper.regression.study import RegressionConfig

CAUCHY = make_noise("contamination", 0.1, 1.0, 1.0, 3.0)
TINY = RegressionConfig(
    sizes=((8, 24), (10, 30)),
    alphas=(0.0, 1e-2, 0.5),
    rates=(0.05, 0.2),
    quantiles=(0.9, 0.99),
    seeds=3,
    steps=25,
    k=2,
    free_alphas=(0.5,),
    free_rates=(0.1,),
    free_quantiles=(0.6,),
    multiples=(1.0,),
    norms=(3.0,),
    ratios=(10.0,),
    thetas=(10.0,),
)


def features(seed, d, n):
    """A and W# of a seed, as the problem draws them."""
    generator = torch.Generator().manual_seed(2 * seed)
    a = torch.randn(d, n, generator=generator, dtype=torch.float64)
    return a, torch.randn(d, d, generator=generator, dtype=torch.float64)


def test_gradient_and_loss_are_the_papers():
    problem = Problem.draw(6, 20, (4,), CAUCHY)
    a, target = features(4, 6, 20)
    w = torch.randn(6, 6, dtype=torch.float64, requires_grad=True)
    loss = (w @ a - target @ a).square().sum() / (2 * 20)
    loss.backward()
    found = problem.gradient(w.detach().float()[None])
    torch.testing.assert_close(found[0].double(), w.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(problem.loss(w.detach().float()[None], found)[0], loss.detach(), rtol=1e-5, atol=1e-5)


def test_a_seed_is_the_same_in_any_company():
    alone, together = Problem.draw(5, 9, (7,), CAUCHY), Problem.draw(5, 9, (3, 7), CAUCHY)
    assert torch.equal(alone.target[0], together.target[1])
    for a, b in zip(alone.noises(3), together.noises(3), strict=True):
        assert torch.equal(a[0], b[1])
    first, second = together.noises(2)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("stage", ["post", "pre"])
@pytest.mark.parametrize("arm", [Arm("none"), Arm("hard", 0.9), Arm("smooth", 0.9), Arm("spam", 10.0)], ids=str)
def test_against_a_plain_loop(stage, arm):
    problem, lr, steps = Problem.draw(6, 20, (2,), CAUCHY), 0.1, 12
    a, target = features(2, 6, 20)
    w, square = torch.zeros(6, 6), RunningSquare()
    for noise in problem.noises(steps):
        g = ((w.double() @ a - target @ a) @ a.mT / 20).float() + noise[0]
        g = arm(GradientStep(g[None, None], None, None, problem, square))[0, 0]
        w = w - lr * (ec.msign(g, "svd") if stage == "pre" else g)
    expected = ((w.double() - target) @ a).square().sum() / 40
    found = descend(problem, stage, [arm], [lr], steps)
    np.testing.assert_allclose(found.final[0, 0, 0], float(expected), rtol=1e-3)


@pytest.mark.parametrize("stage", ["post", "pre"])
def test_a_run_does_not_depend_on_the_others_in_its_grid(stage):
    arms, rates, seeds = TINY.paper_arms(), (0.05, 0.1), (0, 1, 2)
    grid = descend(Problem.draw(8, 24, seeds, CAUCHY), stage, arms, rates, 40, points=(0, 40))
    for (i, arm), (j, lr), (k, seed) in itertools.product(enumerate(arms), enumerate(rates), enumerate(seeds)):
        alone = descend(Problem.draw(8, 24, (seed,), CAUCHY), stage, [arm], [lr], 40)
        np.testing.assert_allclose(alone.final[0, 0, 0], grid.final[i, j, k], rtol=1e-3)
        np.testing.assert_allclose(alone.lowest[0, 0, 0], grid.lowest[i, j, k], rtol=1e-3)
    np.testing.assert_array_equal(grid.curve[-1], grid.final)
    assert (grid.lowest <= grid.final).all()


def step(seed=0, shape=(2, 3, 5, 5)):
    g = torch.Generator().manual_seed(seed)
    noisy, clean, weights = (torch.randn(shape, generator=g) for _ in range(3))
    return GradientStep(10 * noisy, clean, weights, Problem.draw(5, 9, (0, 1, 2), CAUCHY), RunningSquare())


def test_arms():
    s = step()
    assert torch.equal(Arm("none")(s), s.noisy)
    torch.testing.assert_close(
        Arm("hard-median", 2.0)(s)[0, 0], ec.hard_clip(s.noisy[0, 0], 2 * s.noisy[0, 0].abs().median())
    )
    clipped = Arm("agc", 0.5)(s)
    rows, limits = clipped.norm(dim=-1), 0.5 * s.weights.norm(dim=-1)
    assert (rows <= limits * (1 + 1e-5)).all()
    torch.testing.assert_close(clipped / rows[..., None], s.noisy / s.noisy.norm(dim=-1, keepdim=True))
    sizes = s.clean.square().mean((-2, -1)).sqrt()
    expected = ec.noise.posterior_mean(s.noisy[1, 2], float(sizes[1, 2]), CAUCHY)
    torch.testing.assert_close(Arm("posterior")(s)[1, 2], expected)
    first = Arm("spam", 4.0)(s)
    assert torch.equal(first, s.noisy)  # nothing is known yet
    again = Arm("spam", 4.0)(GradientStep(100 * s.noisy, s.clean, s.weights, s.problem, s.square))
    torch.testing.assert_close(again, 2 * s.noisy)  # sqrt(4 v), v the first square
    with pytest.raises(ValueError, match="method must be one of none, hard"):
        Arm("soft")


def test_every_method_has_an_arm_in_the_grid():
    assert {arm.method for arm in TINY.free_arms("contamination")} == set(ARM_METHODS)
    assert "posterior" not in {arm.method for arm in TINY.free_arms("low-rank")}


def test_a_run_that_burst_never_wins():
    rows = [{"kind": "final", "method": "none", "loss": loss, "lr": i} for i, loss in enumerate((None, 5.0, None))]
    assert best_of(rows, "none")["lr"] == 1
    outcome = descend(Problem.draw(4, 9, (0,), make_noise("gaussian", 1e30, 1, 1, 1)), "post", [Arm("none")], [1e30], 4)
    assert np.isinf(outcome.final).all()


@pytest.fixture(scope="module")
def rows():
    return [row for piece in STUDY.units(TINY) for row in STUDY.run_unit(TINY, piece)]


def test_rows_figures_and_claims(rows):
    results = RegressionResults(rows)
    assert results.sizes() == [8, 10]
    assert results.levels() == [0.0, 0.01, 0.5]
    per_unit = len(TINY.paper_arms()) * len(TINY.rates)
    assert len(results.where(kind="final", part="paper")) == 2 * 2 * 3 * per_unit
    figures = STUDY.figures(rows)
    names = {"speedup", "thresholds", "other_noise"} | {
        f"{s}_d{d}{c}" for s in ("post", "pre") for d in (8, 10) for c in ("", "_curves")
    }
    assert set(figures) == names
    found = STUDY.claims(rows)
    assert len(found) == 2 * 7 + 4
    assert all(isinstance(claim.holds, bool) and claim.measured for claim in found)


def test_clipping_helps_where_the_noise_is_heavy(rows):
    """The paper's picture at a size that runs in a second; far from any chance: gains above 10 and near 1."""
    results = RegressionResults(rows)
    for method in ("hard", "smooth"):
        assert results.paper("post", 8).speedup(method, 0.5) > 10
        assert 0.5 < results.paper("post", 8).speedup(method, 0.0) < 2
    clean, none, smooth = (results.spectrum(m, stage="post", d=10, level=0.5) for m in ("clean", "none", "smooth"))
    assert none["values"][0] > 3 * clean["values"][0]
    assert smooth["values"][0] / smooth["gain"] < none["values"][0] / none["gain"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alphas": (1.5,)}, r"alphas must be in \[0, 1\]"),
        ({"quantiles": (0.0,)}, "quantiles must be in"),
        ({"rates": (-1.0,)}, "must be positive and finite"),
        ({"seeds": 0}, "must be >= 1"),
        ({"other_noises": (("pink", 1.0),)}, "noise must be contamination, gaussian or low-rank, got 'pink'"),
    ],
)
def test_bad_config(options, words):
    with pytest.raises(ValueError, match=words):
        RegressionConfig(**options)
