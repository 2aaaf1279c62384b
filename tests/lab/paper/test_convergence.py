import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from entryclip.lab.paper.convergence import STUDY, problem, study
from entryclip.lab.paper.convergence.claims import power_of_iterations

SMALL = study.ConvergenceConfig(post=(200, 400), pre=(40, 80), batches=(10, 20), seeds=3)


def test_rows_claims_and_figure():
    rows = list(study.run_unit(SMALL, {}))
    assert len(rows) == 2 * 3 * (2 + 4)
    assert rows == list(study.run_unit(SMALL, {}))  # the same numbers again
    assert all(row["measured"] <= row["sharper"] <= row["bound"] for row in rows)
    holds = [claim.holds for claim in STUDY.claims(rows)]
    assert holds[1:3] == [True, True]
    assert not holds[0]  # runs this short have bounds above the start, and it says so
    assert set(STUDY.figures(rows)) == set(STUDY.captions)
    broken = [{**row, "measured": 2 * row["bound"]} for row in rows]
    assert not STUDY.claims(broken)[1].holds


def test_the_problem_keeps_the_assumptions():
    """The gradient is right, bounded by B, and Lipschitz with L, far from the minimum and near it; f >= 0."""
    objective = problem.Problem.random(3, (6, 4), torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    assumed = objective.assumptions
    for scale in (0.1, 1.0, 10.0):
        y, z = scale * torch.randn(2, *objective.start.shape, generator=generator, dtype=torch.float64)
        y.requires_grad_()
        (auto,) = torch.autograd.grad(objective.value(y).sum(), y)
        g = objective.gradient(y.detach())
        torch.testing.assert_close(g, auto)
        assert float(g.abs().max()) <= assumed.bound
        norm = torch.linalg.matrix_norm
        assert (norm(g - objective.gradient(z)) <= assumed.smoothness * norm(y.detach() - z)).all()
        assert (objective.value(z) >= 0).all()
    u = torch.full((1, 6, 4), 3**-0.5, dtype=torch.float64)
    assert float(problem.slope(u).max()) == pytest.approx(problem.SLOPE_LIMIT)
    assert torch.equal(objective.value(torch.zeros_like(objective.start)), torch.zeros(3, dtype=torch.float64))
    assert float(objective.value(objective.start).max()) == assumed.gap


def test_the_power_of_the_iterations():
    common = {"stage": "post", "operator": "hard", "batch": 1, "bound": 1.0, "sharper": 1.0, "start": 1.0}
    runs = [
        study.Descent(seed=seed, iterations=size, measured=(1 + 0.1 * seed) * size**-0.7, **common)
        for seed in range(4)
        for size in (10, 100, 1000)
    ]
    assert power_of_iterations(runs) == pytest.approx((-0.7, -0.7, -0.7))
    noisy = np.random.default_rng(0).lognormal(0, 0.1, len(runs))
    centre, low, high = power_of_iterations(
        [replace(run, measured=run.measured * e) for run, e in zip(runs, noisy, strict=True)]
    )
    assert low < -0.7 < high
    assert low < centre < high


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"post": (10,)}, "two or more positive sizes"),
        ({"pre": (0, 5)}, "two or more positive sizes"),
        ({"seeds": 2}, "seeds must be at least 3"),
        ({"alpha": 1.5}, r"must be a number in \[0, 1\]"),
        ({"gamma": math.nan}, "gamma must be"),
    ],
)
def test_bad_input(wrong, words):
    with pytest.raises(ValueError, match=words):
        study.ConvergenceConfig(**wrong)
