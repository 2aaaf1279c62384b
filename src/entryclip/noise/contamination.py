"""Contaminated Gaussian noise: (1 - alpha) N(0, sigma^2) + alpha H in every entry (def:contamination, eq:noise)."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from ..arrays import Array, check_floating, is_number
from .laws import Cauchy, Gaussian, Generator, Laplace, Law, Shape, StudentT, TensorOptions, check_number

HeavyPart = Cauchy | StudentT | Laplace | Gaussian  # the laws that can contaminate


@dataclass(frozen=True)
class Contamination(Law):
    """Gaussian noise in which a fraction alpha of the entries follows another, usually heavier law (def:contamination).

    >>> noise = Contamination(alpha=0.05, sigma=1.0, heavy=Cauchy(3.0))
    >>> noise.sample((2, 768, 768), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 768, 768])
    >>> noise.tail_index
    1.0
    """

    alpha: float
    sigma: float
    heavy: HeavyPart

    def __post_init__(self) -> None:
        if not (is_number(self.alpha) and 0 <= self.alpha <= 1):
            raise ValueError(f"alpha, the fraction of heavy entries, must be a number in [0, 1], got {self.alpha!r}")
        check_number("sigma", self.sigma, positive=False)
        if not isinstance(self.heavy, HeavyPart):
            raise TypeError(f"heavy must be Cauchy, StudentT, Laplace or Gaussian, got {self.heavy!r}")

    @property
    def tail_index(self) -> float:
        """The heavy part's tail index; inf where alpha = 0."""
        return self.heavy.tail_index if self.alpha > 0 else math.inf

    def draw(self, shape: Shape, generator: Generator, options: TensorOptions) -> Tensor:
        """Draw independent entries; with alpha = 0 the same as those of `Gaussian(sigma)`."""
        draws = Gaussian(self.sigma).draw(shape, generator, options)
        if self.alpha > 0:
            uniform = torch.rand(shape, generator=generator, device=options["device"], dtype=torch.float32)
            hit = uniform < self.alpha
            draws[hit] = self.heavy.draw((int(hit.sum()),), generator, options)
        return draws

    def log_density(self, x: Array) -> Array:
        """Compute log((1 - alpha) N(x) + alpha h(x))."""
        if self.alpha == 1:
            return self.heavy.log_density(x)
        bulk = Gaussian(self.sigma).log_density(x) + math.log1p(-self.alpha)
        if self.alpha == 0:
            return bulk
        xp = check_floating(bulk)
        return xp.logaddexp(bulk, self.heavy.log_density(x) + math.log(self.alpha))

    def cdf(self, x: Array) -> np.ndarray:
        """Compute (1 - alpha) Phi(x / sigma) + alpha H(x)."""
        return np.asarray(sum(weight * law.cdf(x) for weight, law in mixture_parts(self)))

    def quantile(self, p: Array) -> np.ndarray:
        """Compute it by a root between the quantiles of the two parts."""
        ends = np.stack([np.asarray(law.quantile(p)) for _, law in mixture_parts(self)])
        low, high = np.broadcast_arrays(ends.min(axis=0), ends.max(axis=0))
        return np.vectorize(self._root, otypes=[float])(p, low, high)

    def _root(self, p: float, low: float, high: float) -> float:
        """Return the quantile at p, which lies in [low, high]."""
        if p > 0.5:  # the left tail keeps its digits
            return -self._root(1 - p, -high, -low)
        if low == high or self.cdf(low) >= p:
            return low
        if self.sigma == 0 and self.heavy.cdf(0.0) * self.alpha < p:  # in the point mass at 0
            return 0.0
        return float(brentq(lambda x: self.cdf(x) - p, low, high, xtol=1e-14 * -low, rtol=1e-14))


def mixture_parts(noise: Law) -> list[tuple[float, Law]]:
    """Return the parts of a mixture with their weights, without those of weight 0; other laws are one part.

    >>> mixture_parts(Contamination(0.25, 1.0, Cauchy(3.0)))
    [(0.75, Gaussian(sigma=1.0)), (0.25, Cauchy(gamma=3.0))]
    """
    if not isinstance(noise, Contamination):
        return [(1.0, noise)]
    parts: list[tuple[float, Law]] = [(1 - noise.alpha, Gaussian(noise.sigma)), (noise.alpha, noise.heavy)]
    return [(weight, law) for weight, law in parts if weight > 0]
