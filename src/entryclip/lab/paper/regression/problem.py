"""The problem of app:synthetic: L(W) = ||W A - Y||_F^2 / (2 n) with Y = W# A, its gradient corrupted at every step.

With S = A A^T / n the gradient is (W - W#) S, and the loss is half its inner product with W - W#: A is not kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ....noise import Cauchy, Contamination, Gaussian, LowRankSum, StudentT
from ....noise.laws import Noise


@dataclass(frozen=True)
class Problem:
    """One problem per seed, in tensors of shape (seeds, d, d)."""

    target: Tensor  # W#
    second: Tensor  # S
    noise: Noise
    seeds: tuple[int, ...]

    @classmethod
    def draw(cls, d: int, n: int, seeds: tuple[int, ...], noise: Noise) -> "Problem":
        """Draw A and W# of each seed from its own generator: the same whichever seeds are drawn together."""
        targets, seconds = [], []
        for seed in seeds:
            generator = torch.Generator().manual_seed(2 * seed)
            features = torch.randn(d, n, generator=generator, dtype=torch.float64)
            targets.append(torch.randn(d, d, generator=generator, dtype=torch.float64))
            seconds.append(features @ features.mT / n)
        return cls(torch.stack(targets).float(), torch.stack(seconds).float(), noise, seeds)

    def noises(self, steps: int) -> Iterator[Tensor]:
        """The noise of each step, (seeds, d, d): the same draws for every method, learning rate and threshold."""
        generators = [torch.Generator().manual_seed(2 * seed + 1) for seed in self.seeds]
        shape = tuple(self.target.shape[-2:])
        for _ in range(steps):
            yield torch.stack([self.noise.sample(shape, generator) for generator in generators])

    def gradient(self, w: Tensor) -> Tensor:
        """The clean gradient at `w`, (..., seeds, d, d)."""
        return (w - self.target) @ self.second

    def loss(self, w: Tensor, gradient: Tensor) -> Tensor:
        """The loss at `w`, (..., seeds), from its gradient; in fp64, since a run that bursts squares large numbers."""
        return 0.5 * ((w - self.target).double() * gradient.double()).sum((-2, -1))


def make_noise(kind: str, level: float, sigma: float, nu: float, scale: float) -> Noise:
    """A noise by name. The level is alpha for `contamination`, the standard deviation for `gaussian`, and the size of
    four random directions for `low-rank`."""
    if kind == "contamination":
        heavy = Cauchy(scale) if nu == 1 else StudentT(nu, scale)
        return Contamination(alpha=level, sigma=sigma, heavy=heavy)
    if kind == "gaussian":
        return Gaussian(level)
    if kind == "low-rank":
        return LowRankSum(rank=4, scale=level)
    raise ValueError(f"noise must be contamination, gaussian or low-rank, got {kind!r}")
