"""A synthetic gradient: standard Gaussian entries plus one strong direction, a matrix of rank one."""

import math

import torch
from torch import Tensor


def synthetic_signal(side: int, strength: float, generator: torch.Generator) -> Tensor:
    """Draw a `side` x `side` Gaussian matrix plus a random rank-one matrix of `strength` times its spectral norm.

    The spectral norm of the Gaussian part is taken as 2 sqrt(side), its limit for large matrices.

    >>> G = synthetic_signal(64, 3.0, torch.Generator().manual_seed(0))
    >>> s = torch.linalg.svdvals(G)
    >>> bool(s[0] > 2.5 * s[1])
    True
    """
    u, v = (unit_vector(side, generator) for _ in range(2))
    return torch.randn(side, side, generator=generator) + strength * 2 * math.sqrt(side) * torch.outer(u, v)


def unit_vector(side: int, generator: torch.Generator) -> Tensor:
    """Draw a vector of `side` entries, uniformly on the unit sphere."""
    x = torch.randn(side, generator=generator)
    return x / torch.linalg.vector_norm(x)
