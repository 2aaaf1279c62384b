"""What is run: the paper's clips over its grid of quantiles and learning rates, and `auto()` over learning rates."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ....clip import Clip, auto
from ....matrix.sign import msign
from ....operators import hard_clip, smooth_shrinkage
from ...engine.study import Piece, Row
from ..regression.arms import Arm
from ..regression.descent import descend
from ..regression.problem import Problem, make_noise
from ..typed_rows import TypedRow

_STAGES = ("post", "pre")  # gradient descent with clipped gradients, spectral gradient descent with clipped inputs
AUTO = {"auto, smooth": smooth_shrinkage, "auto, hard": hard_clip}


@dataclass(frozen=True)
class UntunedConfig:
    """The setting of app:synthetic, as in `regression`, with seeds of its own.

    rates        the paper's learning rates, for its clips and for `auto()`
    fine_rates   further ones for `auto()` alone: 18 trials in all, against the 42 of a clip with 7 quantiles
    """

    sizes: tuple[tuple[int, int], ...] = ((32, 128), (64, 256))  # (d, n)
    alphas: tuple[float, ...] = (0.0, 1e-3, 1e-2, 0.05, 0.1, 0.5, 0.8, 1.0)
    rates: tuple[float, ...] = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1)
    fine_rates: tuple[float, ...] = (0.002, 0.003, 0.004, 0.007, 0.014, 0.028, 0.035, 0.07, 0.14, 0.2, 0.28, 0.4)
    quantiles: tuple[float, ...] = (0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.99999)
    first_seed: int = 1000
    seeds: int = 10
    steps: int = 300
    sigma: float = 1.0
    scale: float = 3.0  # of the Cauchy part

    def __post_init__(self) -> None:
        if min(self.seeds, self.steps, *(side for size in self.sizes for side in size)) < 1:
            raise ValueError("seeds, steps and both numbers of every size must be >= 1")
        if not all(0 <= alpha <= 1 for alpha in self.alphas):
            raise ValueError(f"alphas must be in [0, 1], got {self.alphas}")
        if not all(0 < rate < math.inf for rate in self.rates + self.fine_rates):
            raise ValueError(f"rates must be positive and finite, got {self.rates + self.fine_rates}")

    @classmethod
    def quick(cls) -> "UntunedConfig":
        """The same picture in less than a minute: one size, fewer seeds, steps and settings."""
        return cls(
            sizes=((32, 128),),
            alphas=(0.0, 0.1, 1.0),
            rates=(0.005, 0.02, 0.1),
            fine_rates=(0.01,),
            quantiles=(0.9, 0.99),
            seeds=3,
            steps=100,
        )


@dataclass(frozen=True, kw_only=True)
class UntunedRun(TypedRow):
    """The final loss of one setting, the median over seeds."""

    d: int
    stage: str
    alpha: float
    method: str  # none, hard, smooth, or a key of AUTO
    setting: float | None  # the quantile
    lr: float
    is_fine: bool  # a learning rate that only `auto()` was given
    loss: float  # 1e30 where the median run diverged
    losses: list[float]  # of each seed


def units(config: UntunedConfig) -> list[Piece]:
    """A unit for every size, stage and share of contamination."""
    return [
        {"d": d, "n": n, "stage": stage, "alpha": alpha}
        for d, n in config.sizes
        for stage in _STAGES
        for alpha in config.alphas
    ]


def run_unit(config: UntunedConfig, piece: Piece) -> Iterator[Row]:
    """Yield a row for every method, setting and learning rate."""
    noise = make_noise("contamination", piece["alpha"], config.sigma, 1.0, config.scale)
    seeds = tuple(range(config.first_seed, config.first_seed + config.seeds))
    problem, stage = Problem.draw(piece["d"], piece["n"], seeds, noise), piece["stage"]
    common = {key: piece[key] for key in ("d", "stage", "alpha")}

    def row(method: str, setting: float | None, rate: float, losses: np.ndarray) -> Row:
        kept = [float(min(loss, 1e30)) for loss in losses]
        is_fine = rate not in config.rates
        run = UntunedRun(**common, method=method, setting=setting, lr=rate, is_fine=is_fine,
                         loss=float(np.median(kept)), losses=kept)  # fmt: skip
        return run.to_row()

    arms = [Arm("none"), *(Arm(method, q) for method in ("hard", "smooth") for q in config.quantiles)]
    final = descend(problem, stage, arms, config.rates, config.steps).final
    for arm, by_rate in zip(arms, final, strict=True):
        for rate, losses in zip(config.rates, by_rate, strict=True):
            yield row(arm.method, arm.setting, rate, losses)
    rates = sorted(config.rates + config.fine_rates)
    for name, operator in AUTO.items():
        for rate, losses in zip(rates, _descend_auto(problem, stage, auto(operator), rates, config.steps), strict=True):
            yield row(name, None, rate, losses)


@torch.no_grad()
def _descend_auto(problem: Problem, stage: str, clip: Clip, rates: Sequence[float], steps: int) -> np.ndarray:
    """Run all learning rates and seeds at once from W = 0; return the final losses, (rates, seeds)."""
    w = torch.zeros(len(rates), *problem.target.shape)
    lr = torch.tensor(rates)[:, None, None, None]
    state = clip.init(w)
    for noise in problem.noises(steps):
        update, state = clip.update(problem.gradient(w) + noise, state)
        w -= lr * (msign(update, "exact") if stage == "pre" else update)
    return np.nan_to_num(problem.loss(w, problem.gradient(w)).numpy(), nan=np.inf, posinf=np.inf)
