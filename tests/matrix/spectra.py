"""Matrices with a given spectrum."""

import torch


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def with_singular_values(s: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """A square fp64 matrix with these singular values and random directions."""
    u, _ = torch.linalg.qr(gaussian(len(s), len(s), seed=seed, dtype=torch.float64))
    v, _ = torch.linalg.qr(gaussian(len(s), len(s), seed=seed + 1, dtype=torch.float64))
    return u * s.double() @ v.T
