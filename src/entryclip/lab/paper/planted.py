"""The signal of the synthetic experiments: a Gaussian matrix with a planted top direction."""

import math

import torch
from torch import Tensor


def planted(side: int, strength: float, generator: torch.Generator) -> Tensor:
    """`side` x `side` standard Gaussian entries, plus a random direction at `strength` times their spectral norm.

    >>> G = planted(64, 3.0, torch.Generator().manual_seed(0))
    >>> s = torch.linalg.svdvals(G)
    >>> bool(s[0] > 2.5 * s[1])
    True
    """
    u, v = (unit_vector(side, generator) for _ in range(2))
    return torch.randn(side, side, generator=generator) + strength * 2 * math.sqrt(side) * torch.outer(u, v)


def unit_vector(side: int, generator: torch.Generator) -> Tensor:
    """Uniform on the sphere."""
    x = torch.randn(side, generator=generator)
    return x / torch.linalg.vector_norm(x)
