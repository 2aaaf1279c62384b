"""Runs of post- and pre-clipping on a problem with known constants, beside what the theorems guarantee."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ....matrix.sign import msign
from ....noise import Cauchy, Contamination
from ....theory import Guarantee, guarantee
from ....theory.entry import OPERATOR_BOUNDS
from ...engine.study import Piece, Row
from ..typed_rows import TypedRow
from .problem import Problem


@dataclass(frozen=True)
class ConvergenceConfig:
    """The lengths and batches of the runs, the shape of the matrix, and the noise."""

    post: tuple[int, ...] = (1000, 3000, 10_000, 30_000)  # K: iterations of post-clipping
    pre: tuple[int, ...] = (400, 1200, 3600)  # T: iterations of pre-clipping
    batches: tuple[int, ...] = (100, 300, 1000)  # N: noisy gradients in each iteration of pre-clipping
    seeds: int = 8
    shape: tuple[int, int] = (6, 4)
    alpha: float = 0.05
    sigma: float = 0.1
    gamma: float = 0.1

    def __post_init__(self) -> None:
        for name in ("post", "pre", "batches"):
            sizes = getattr(self, name)
            if len(sizes) < 2 or min(sizes) < 1:
                raise ValueError(f"{name} must be two or more positive sizes, got {sizes}")
        if self.seeds < 3:
            raise ValueError(f"seeds must be at least 3, for intervals, got {self.seeds}")
        Contamination(self.alpha, self.sigma, Cauchy(self.gamma))  # raises where these are no parameters of a noise

    @classmethod
    def quick(cls) -> "ConvergenceConfig":
        """Less than a minute: shorter runs, smaller batches, fewer seeds."""
        return cls(post=(1000, 2000), pre=(400, 800), batches=(100, 200), seeds=3)


@dataclass(frozen=True, kw_only=True)
class Descent(TypedRow):
    """One run of one algorithm. The theorem bounds a mean over the iterations of the true gradient's size:

    its squared Frobenius norm for post-clipping, its nuclear norm for pre-clipping.
    """

    stage: str
    operator: str
    iterations: int
    batch: int
    seed: int
    measured: float  # the mean of the gradient's size in this run
    bound: float  # the theorem's bound on its expectation
    sharper: float  # the bound with the exact bias and variance
    start: float  # the gradient's size at the start


def run_unit(config: ConvergenceConfig, piece: Piece) -> Iterator[Row]:
    """Yield one row per algorithm, size and seed; the study is one unit, so `piece` is empty."""
    problem = Problem.random(config.seeds, config.shape, torch.Generator().manual_seed(0))
    for operator in OPERATOR_BOUNDS:
        for size in config.post:
            yield from _rows(problem, _promise(config, problem, "post", operator, size), seed=size)
        for size in config.pre:
            for batch in config.batches:
                promise = _promise(config, problem, "pre", operator, size, batch)
                yield from _rows(problem, promise, seed=size + batch)


def _promise(
    config: ConvergenceConfig, problem: Problem, stage: str, operator: str, iterations: int, batch: int | None = None
) -> Guarantee:
    noise = Contamination(config.alpha, config.sigma, Cauchy(config.gamma))
    assumed = problem.assumptions._asdict()
    return guarantee(stage, operator, noise, shape=config.shape, iterations=iterations, batch=batch, **assumed)


def _rows(problem: Problem, promise: Guarantee, seed: int) -> Iterator[Row]:
    """Yield one row per run of the problem."""
    measured = _descend(problem, promise, torch.Generator().manual_seed(seed))
    sharper = promise.sharper_rate
    first = _size(promise.stage, problem.gradient(problem.start))
    for run, (value, start) in enumerate(zip(measured.tolist(), first.tolist(), strict=True)):
        yield Descent(
            stage=promise.stage,
            operator=promise.operator,
            iterations=promise.iterations,
            batch=promise.batch,
            seed=run,
            measured=value,
            bound=promise.rate,
            sharper=sharper,
            start=start,
        ).to_row()


def _descend(problem: Problem, promise: Guarantee, generator: torch.Generator) -> Tensor:
    """Run the algorithm on all seeds at once; return the mean of the gradient's size over the iterations, per run."""
    clip, y = OPERATOR_BOUNDS[promise.operator].operator, problem.start.clone()
    total = torch.zeros(len(y), dtype=y.dtype)
    for noise in _draws(promise, len(y), generator):
        g = problem.gradient(y)
        total += _size(promise.stage, g)
        step = clip(g[:, None].float() + noise, promise.threshold).mean(dim=1, dtype=g.dtype)
        y -= promise.step_size * (step if promise.stage == "post" else msign(step, method="svd"))
    return total / promise.iterations


def _draws(promise: Guarantee, runs: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield noise of shape (runs, batch, m, n) for each iteration; small ones are drawn many at once, for speed."""
    shape = (runs, promise.batch, *promise.shape)
    block = max(1, 2**16 // math.prod(shape))
    for start in range(0, promise.iterations, block):
        count = min(block, promise.iterations - start)
        yield from promise.noise.sample((count, *shape), generator, dtype=torch.float32)


def _size(stage: str, g: Tensor) -> Tensor:
    """The size of gradients (runs, m, n) that the theorem of this stage bounds, one number per run."""
    if stage == "post":
        return g.square().sum(dim=(-2, -1))
    return torch.linalg.matrix_norm(g, "nuc")
