"""Many regression runs in one tensor against one run at a time, on a subset of the grid, one thread each."""

import functools
import itertools
from collections.abc import Iterator

import numpy as np
import torch

import entryclip as ec

from ..paper.regression.arms import Arm
from ..paper.regression.descent import descend
from ..paper.regression.problem import Problem, make_noise
from .timing import Result, milliseconds, side_by_side

ARMS = [Arm("none"), Arm("hard", 0.9), Arm("smooth", 0.9), Arm("smooth", 0.99)]
RATES = (0.01, 0.02, 0.05, 0.1)
SEEDS = tuple(range(10))
STEPS = 8


def run() -> Iterator[Result]:
    noise = make_noise("contamination", 0.1, 1.0, 1.0, 3.0)
    problem = Problem.draw(32, 128, SEEDS, noise)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for stage, name, limit in (("post", "GD", 8.0), ("pre", "spectral GD", 4.0)):
            together = descend(problem, stage, ARMS, RATES, STEPS).final
            np.testing.assert_allclose(together, one_by_one(problem, stage), rtol=1e-3)
            times = side_by_side(
                {
                    "together": functools.partial(descend, problem, stage, ARMS, RATES, STEPS),
                    "alone": functools.partial(one_by_one, problem, stage),
                },
                rounds=3,
            )
            detail = f"{milliseconds(times['together'])} against {milliseconds(times['alone'])}"
            ratio = times["alone"] / times["together"]
            yield Result(f"regression, {name}: 160 runs at once over one by one", ratio, limit, True, detail)
    finally:
        torch.set_num_threads(threads)


def one_by_one(problem: Problem, stage: str) -> np.ndarray:
    """The loop one would write first: a run at a time, the matrix sign by SVD as in the paper."""
    losses = np.empty((len(ARMS), len(RATES), len(SEEDS)))
    for (i, arm), (j, lr), (k, seed) in itertools.product(enumerate(ARMS), enumerate(RATES), enumerate(SEEDS)):
        target, second = problem.target[k], problem.second[k]
        clip = {"hard": ec.hard, "smooth": ec.smooth}[arm.method](arm.setting) if arm.setting else None
        generator, w = torch.Generator().manual_seed(2 * seed + 1), torch.zeros(32, 32)
        for _ in range(STEPS):
            g = (w - target) @ second + problem.noise.sample((32, 32), generator)
            g = g if clip is None else clip(g)
            w = w - lr * (ec.msign(g, "svd") if stage == "pre" else g)
        losses[i, j, k] = 0.5 * ((w - target) * ((w - target) @ second)).sum()
    return losses
