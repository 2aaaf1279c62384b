"""The regression study: its arithmetic against plain loops, and a small run of it."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

import entryclip as ec
from entryclip.lab.paper.regression import STUDY
from entryclip.lab.paper.regression.arms import ARM_METHODS, Arm, GradientStep, RunningSquare
from entryclip.lab.paper.regression.descent import descend
from entryclip.lab.paper.regression.problem import Problem, make_noise
from entryclip.lab.paper.regression.results import BestLosses, RegressionResults
from entryclip.lab.paper.regression.rows import best_of
from entryclip.lab.paper.regression.study import RegressionConfig
from entryclip.lab.paper.regression.subspace_claims import subspace_claims

AT_TEN = ("none", "post", 0.5, 10)  # method, stage, alpha, d
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
    optimum_rates=(0.1, 0.4, 1.2),
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
    assert {arm.method for arm in TINY.free_arms("pre", "contamination")} == set(ARM_METHODS)
    assert "posterior" not in {arm.method for arm in TINY.free_arms("pre", "low-rank")}
    own = [piece for piece in STUDY.units(TINY) if piece["part"] == "optimum"]  # gradient descent with larger steps
    assert [(piece["stage"], piece["noise"]) for piece in own] == [("post", "contamination"), ("post", "gaussian")]


def test_a_linear_schedule_falls_to_zero():
    problem, steps = Problem.draw(6, 20, (2,), make_noise("gaussian", 1e-9, 1.0, 1.0, 1.0)), 4
    w = torch.zeros_like(problem.target)
    for factor in (1.0, 0.75, 0.5, 0.25):
        w = w - 0.1 * factor * problem.gradient(w)
    found = descend(problem, "post", [Arm("none")], [0.1], steps, schedule="linear")
    np.testing.assert_allclose(found.final[0, 0], problem.loss(w, problem.gradient(w)), rtol=1e-5)
    constant = descend(problem, "post", [Arm("none")], [0.1], steps)
    assert constant.final[0, 0] < found.final[0, 0]  # without noise, smaller steps get less far


def test_the_posterior_mean_of_a_run_that_diverged_is_not_a_number():
    s = step()
    lost = GradientStep(s.noisy, torch.full_like(s.clean, torch.inf), s.weights, s.problem, s.square)
    assert Arm("posterior")(lost).isnan().all()


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
    assert len(found) == 2 * (7 + 2 * 3) + 4
    assert all(isinstance(claim.holds, bool) and claim.measured for claim in found)
    assert all("25 steps" in claim.claim or "first gradient" in claim.claim for claim in found)


def test_one_stage_on_the_papers_grid_alone_has_its_own_claims_and_figures():
    config = dataclasses.replace(TINY, sizes=((8, 24),), stages=("pre",), steps=5, schedule="linear", free_alphas=())
    config = dataclasses.replace(config, other_noises=())
    rows = [row for piece in STUDY.units(config) for row in STUDY.run_unit(config, piece)]
    assert set(STUDY.figures(rows)) == {"speedup", "pre_d8", "pre_d8_curves"}
    words = [claim.claim for claim in STUDY.claims(rows)]
    assert len(words) == 5 + 3
    assert words[0] == "d = 8, 5 steps, linear decay: spectral GD converges at every alpha without clipping"


def test_gains_count_against_standing_still_where_no_clipping_is_worse_than_that(rows):
    losses = RegressionResults(rows).paper("post", 8)
    start = RegressionResults(rows).start(part="paper", stage="post", d=8)
    assert losses.best("none", 0.5) > start > losses.best("none", 0.0)
    assert losses.speedup_over_still("hard", 0.5) == start / losses.best("hard", 0.5)
    assert losses.speedup_over_still("hard", 0.0) == losses.speedup("hard", 0.0)


def test_chance_is_what_random_subspaces_share(rows):
    """k / d, against the mean of 400 pairs of random subspaces, whose standard error is below .003."""
    (row,) = [r for r in rows if r["kind"] == "spectrum" and (r["method"], r["stage"], r["level"], r["d"]) == AT_TEN]
    bases = torch.linalg.qr(torch.randn(400, 2, 10, TINY.k, generator=torch.Generator().manual_seed(0))).Q
    shared = (bases[:, 0].mT @ bases[:, 1]).square().sum((-2, -1)) / TINY.k
    assert row["chance"] == TINY.k / 10 == pytest.approx(shared.mean().item(), abs=0.015)


def at_levels(kept, chance=0.1):
    """Rows of one spectrum each for alpha = .1 and 1, with these shares kept."""
    common = {"part": "paper", "kind": "spectrum", "stage": "post", "d": 10, "noise": "contamination"}
    clean = [{**common, "level": level, "method": "clean", "values": [2.0]} for level in kept]
    return clean + [
        {**common, "level": level, "method": method, "values": [3.0], "gain": 1.0, "kept": share, "chance": chance}
        for level, shares in kept.items()
        for method, share in zip(("none", "hard", "smooth"), shares, strict=True)
    ]


def test_the_subspace_claims_look_at_every_alpha():
    good = at_levels({0.1: (0.2, 0.6, 0.7), 1.0: (0.1, 0.5, 0.5)})
    lost = at_levels({0.1: (0.2, 0.6, 0.7), 1.0: (0.1, 0.11, 0.5)})
    verdicts = [[claim.holds for claim in subspace_claims(RegressionResults(r), 10, "post")] for r in (good, lost)]
    assert verdicts == [[False, True, True], [False, True, False]]  # the largest singular value is the same with all
    *_, last = subspace_claims(RegressionResults(lost), 10, "post")
    assert last.measured == "chance 0.1; hard not at alpha = 1 (1.10) times chance"


def test_a_best_rate_at_the_edge_of_its_grid_is_told():
    def losses(*values):
        at = {"part": "optimum", "stage": "post", "d": 8, "noise": "contamination", "level": 1.0, "method": "posterior"}
        rows = [
            {**at, "kind": "final", "lr": lr, "loss": loss} for lr, loss in zip((0.1, 0.4, 1.2), values, strict=True)
        ]
        return BestLosses(RegressionResults(rows), "free", "post", 8, "contamination", (1.0,))

    assert not losses(3.0, 2.0, None).is_rate_at_edge("posterior", 1.0)
    assert losses(3.0, 2.0, 1.0).is_rate_at_edge("posterior", 1.0)
    assert losses(1.0, 2.0, None).is_rate_at_edge("posterior", 1.0)


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
        ({"schedule": "cosine"}, "schedule must be one of constant, linear, got 'cosine'"),
        ({"stages": ("mid",)}, "stages must be one or more of post, pre"),
        ({"other_noises": (("pink", 1.0),)}, "noise must be contamination, gaussian or low-rank, got 'pink'"),
    ],
)
def test_bad_config(options, words):
    with pytest.raises(ValueError, match=words):
        RegressionConfig(**options)
