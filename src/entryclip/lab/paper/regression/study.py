"""What is run: the paper's grid of methods, learning rates and seeds, and a grid that goes beyond it."""

import math
from dataclasses import dataclass
from typing import get_args

from ...engine.study import Piece, Row
from .arms import Arm
from .descent import Schedule, descend
from .problem import Problem, make_noise
from .rows import best_of, curve_rows, final_rows, spectrum_rows

PAPER_METHODS = ("none", "hard", "smooth")
STAGES = ("post", "pre")  # gradient descent with clipped gradients, spectral gradient descent with clipped inputs


@dataclass(frozen=True)
class RegressionConfig:
    """The setting of app:synthetic, with a field for everything it leaves open."""

    sizes: tuple[tuple[int, int], ...] = ((32, 128), (64, 256))  # (d, n)
    alphas: tuple[float, ...] = (0.0, 1e-3, 1e-2, 0.05, 0.1, 0.5, 0.8, 1.0)
    rates: tuple[float, ...] = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1)
    quantiles: tuple[float, ...] = (0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.99999)
    seeds: int = 10
    steps: int = 300
    schedule: Schedule = "constant"  # of the learning rate; "linear" falls to 0 at the last step
    stages: tuple[str, ...] = STAGES
    sigma: float = 1.0
    nu: float = 1.0  # degrees of freedom of the contaminating Student t; 1 is Cauchy
    scale: float = 3.0  # of the contaminating Student t
    k: int = 8  # the leading directions whose recovery is measured
    # Beyond the paper, at the first size only:
    free_alphas: tuple[float, ...] = (0.0, 1e-2, 0.1, 0.5, 0.8, 1.0)
    free_rates: tuple[float, ...] = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
    free_quantiles: tuple[float, ...] = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999)
    multiples: tuple[float, ...] = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # of the median of |entries|
    norms: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0, 100.0)  # thresholds of global norm clipping
    ratios: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0)  # of AGC: a row's norm over the weights'
    thetas: tuple[float, ...] = (1.0, 10.0, 100.0, 5000.0)  # of SPAM: squared entries over their running mean
    optimum_rates: tuple[float, ...] = (0.4, 0.8, 1.0, 1.2, 1.4, 1.6)  # of GD with the posterior mean
    other_noises: tuple[tuple[str, float], ...] = (("gaussian", 5.0), ("low-rank", 100.0))

    def __post_init__(self) -> None:
        if min(self.seeds, self.steps, self.k, *(side for size in self.sizes for side in size)) < 1:
            raise ValueError("seeds, steps, k and both numbers of every size must be >= 1")
        if self.schedule not in get_args(Schedule):
            raise ValueError(f"schedule must be one of {', '.join(get_args(Schedule))}, got {self.schedule!r}")
        if not self.stages or not set(self.stages) <= set(STAGES):
            raise ValueError(f"stages must be one or more of {', '.join(STAGES)}, got {self.stages}")
        if not all(0 <= alpha <= 1 for alpha in self.alphas + self.free_alphas):
            raise ValueError(f"alphas must be in [0, 1], got {self.alphas + self.free_alphas}")
        if not all(0 < q <= 1 for q in self.quantiles + self.free_quantiles):
            raise ValueError(f"quantiles must be in (0, 1], got {self.quantiles + self.free_quantiles}")
        positive = (
            self.rates + self.free_rates + self.optimum_rates + self.multiples + self.norms + self.ratios + self.thetas
        )
        if not all(0 < number < math.inf for number in positive):
            raise ValueError(f"rates, multiples, norms, ratios and thetas must be positive and finite, got {positive}")
        for kind, level in self.other_noises:
            make_noise(kind, level, self.sigma, self.nu, self.scale)

    @classmethod
    def quick(cls) -> "RegressionConfig":
        """The same picture in some seconds: one size, fewer seeds, steps and settings."""
        return cls(
            sizes=((32, 128),),
            alphas=(0.0, 1e-2, 0.1, 0.5),
            rates=(0.01, 0.05, 0.1),
            quantiles=(0.9, 0.99, 0.999),
            seeds=3,
            steps=80,
            free_alphas=(1e-2, 0.5, 1.0),
            free_rates=(0.02, 0.1),
            free_quantiles=(0.6, 0.9, 0.99),
            multiples=(0.5, 2.0, 8.0),
            norms=(10.0, 30.0),
            ratios=(1.0, 10.0),
            thetas=(10.0,),
            optimum_rates=(0.4, 1.2),
        )

    def paper_arms(self) -> list[Arm]:
        """No clip, and the paper's two operators at every quantile of its grid."""
        return [Arm("none"), *(Arm(method, q) for method in ("hard", "smooth") for q in self.quantiles)]

    def free_arms(self, stage: str, noise: str) -> list[Arm]:
        """Any thresholds, the clips in use today and, for spectral descent, the posterior mean.

        Gradient descent with the posterior mean takes far larger steps than with any clip: its units are its own.
        Low-rank noise has no law of single entries, so no posterior mean.
        """
        grids = {
            "hard": self.free_quantiles,
            "smooth": self.free_quantiles,
            "hard-median": self.multiples,
            "smooth-median": self.multiples,
            "global": self.norms,
            "agc": self.ratios,
            "spam": self.thetas,
        }
        arms = [Arm("none"), *(Arm(method, setting) for method, grid in grids.items() for setting in grid)]
        return [*arms, Arm("posterior")] if stage == "pre" and noise != "low-rank" else arms


def units(config: RegressionConfig) -> list[Piece]:
    """A unit for every part, size, stage and noise: each is a whole grid of arms, learning rates and seeds.

    paper     the paper's grid at every size
    free      any threshold, the clips in use today, and noise that no entry stands out of; at the first size
    optimum   gradient descent with the posterior mean, at its own learning rates
    """
    paper = [
        {"part": "paper", "d": d, "n": n, "stage": stage, "noise": "contamination", "level": alpha}
        for d, n in config.sizes
        for stage in config.stages
        for alpha in config.alphas
    ]
    d, n = config.sizes[0]
    noises = [*(("contamination", alpha) for alpha in config.free_alphas), *config.other_noises]
    beyond = [
        {"part": part, "d": d, "n": n, "stage": stage, "noise": noise, "level": level}
        for part in ("free", "optimum")
        for stage in config.stages
        for noise, level in noises
        if part == "free" or (stage == "post" and noise != "low-rank")
    ]
    return paper + beyond


def run_unit(config: RegressionConfig, piece: Piece) -> list[Row]:
    """Rows of kind `final` for every arm and learning rate; for the paper's methods also `curve` and `spectrum`."""
    noise = make_noise(piece["noise"], piece["level"], config.sigma, config.nu, config.scale)
    problem = Problem.draw(piece["d"], piece["n"], tuple(range(config.seeds)), noise)
    stage, part = piece["stage"], piece["part"]
    arms, rates = {
        "paper": (config.paper_arms(), config.rates),
        "free": (config.free_arms(stage, piece["noise"]), config.free_rates),
        "optimum": ([Arm("posterior")], config.optimum_rates),
    }[part]
    rows = final_rows(descend(problem, stage, arms, rates, config.steps, schedule=config.schedule), arms, rates)
    if part == "paper":
        best = {method: best_of(rows, method) for method in PAPER_METHODS}
        for method in PAPER_METHODS:
            rows += curve_rows(problem, stage, best[method], config.steps, config.schedule)
        rows += spectrum_rows(problem, [Arm(method, best[method]["setting"]) for method in PAPER_METHODS], config.k)
    run = {"steps": config.steps, "schedule": config.schedule}
    return [{**{key: piece[key] for key in ("part", "d", "stage", "noise", "level")}, **run, **row} for row in rows]
