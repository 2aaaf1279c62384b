"""What is run: the paper's grid, and what goes beyond it."""

import math
from dataclasses import dataclass
from typing import Any

from .arms import Arm
from .problem import make_noise

PAPER = ("none", "hard", "smooth")


@dataclass(frozen=True)
class Config:
    """app:synthetic, with a field for everything it leaves open."""

    sizes: tuple[tuple[int, int], ...] = ((32, 128), (64, 256))  # (d, n)
    alphas: tuple[float, ...] = (0.0, 1e-3, 1e-2, 0.05, 0.1, 0.5, 0.8, 1.0)
    rates: tuple[float, ...] = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1)
    quantiles: tuple[float, ...] = (0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.99999)
    seeds: int = 10
    steps: int = 300
    sigma: float = 1.0
    nu: float = 1.0  # of the Student-t that contaminates: 1 is Cauchy
    scale: float = 3.0  # of it
    k: int = 8  # the leading directions whose recovery is measured
    # Beyond the paper, at the first size only:
    free_alphas: tuple[float, ...] = (0.0, 1e-2, 0.1, 0.5, 0.8, 1.0)
    free_rates: tuple[float, ...] = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
    free_quantiles: tuple[float, ...] = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999)
    multiples: tuple[float, ...] = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # of the median of |entries|
    norms: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0, 100.0)  # of global norm clipping
    ratios: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0)  # of AGC
    thetas: tuple[float, ...] = (1.0, 10.0, 100.0, 5000.0)  # of SPAM
    other_noises: tuple[tuple[str, float], ...] = (("gaussian", 5.0), ("low-rank", 100.0))

    def __post_init__(self) -> None:
        if min(self.seeds, self.steps, self.k, *(side for size in self.sizes for side in size)) < 1:
            raise ValueError("seeds, steps, k and both numbers of every size must be >= 1")
        if not all(0 <= alpha <= 1 for alpha in self.alphas + self.free_alphas):
            raise ValueError(f"alphas must be in [0, 1], got {self.alphas + self.free_alphas}")
        if not all(0 < q <= 1 for q in self.quantiles + self.free_quantiles):
            raise ValueError(f"quantiles must be in (0, 1], got {self.quantiles + self.free_quantiles}")
        positive = self.rates + self.free_rates + self.multiples + self.norms + self.ratios + self.thetas
        if not all(0 < number < math.inf for number in positive):
            raise ValueError(f"rates, multiples, norms, ratios and thetas must be positive and finite, got {positive}")
        for kind, level in self.other_noises:
            make_noise(kind, level, self.sigma, self.nu, self.scale)

    @classmethod
    def quick(cls) -> "Config":
        """The same picture in less than a minute: one size, fewer seeds, steps and settings."""
        return cls(
            sizes=((32, 128),),
            alphas=(0.0, 1e-2, 0.1, 0.5, 1.0),
            rates=(0.01, 0.05, 0.1),
            quantiles=(0.9, 0.99, 0.999),
            seeds=3,
            steps=150,
            free_alphas=(1e-2, 0.5, 1.0),
            free_rates=(0.02, 0.1, 0.4),
            free_quantiles=(0.6, 0.9, 0.99),
            multiples=(0.5, 2.0, 8.0),
            norms=(10.0, 30.0),
            ratios=(1.0, 10.0),
            thetas=(10.0,),
        )

    def paper_arms(self) -> list[Arm]:
        return [Arm("none"), *(Arm(method, q) for method in ("hard", "smooth") for q in self.quantiles)]

    def free_arms(self, noise: str) -> list[Arm]:
        """Thresholds chosen freely, what people use today, and, where the noise has a law to be told, the floor."""
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
        return arms if noise == "low-rank" else [*arms, Arm("posterior")]


def units(config: Config) -> list[dict[str, Any]]:
    """Independent pieces of work, each a whole grid of arms, learning rates and seeds."""
    stages = ("post", "pre")
    paper = [
        {"part": "paper", "d": d, "n": n, "stage": stage, "noise": "contamination", "level": alpha}
        for d, n in config.sizes
        for stage in stages
        for alpha in config.alphas
    ]
    d, n = config.sizes[0]
    noises = [*(("contamination", alpha) for alpha in config.free_alphas), *config.other_noises]
    free = [
        {"part": "free", "d": d, "n": n, "stage": stage, "noise": noise, "level": level}
        for stage in stages
        for noise, level in noises
    ]
    return paper + free
