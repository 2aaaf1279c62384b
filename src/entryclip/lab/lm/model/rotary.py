"""Rotary position embeddings with half of the frequencies set to 0, as in the speed-run's model."""

import torch
from torch import Tensor

Rotation = tuple[Tensor, Tensor]  # cos and sin of the angles, each (length, head_size / 2), fp32


def rotation(length: int, head_size: int, device: torch.device) -> Rotation:
    """Compute cos and sin of position * frequency.

    Half of the frequencies run geometrically from 1 down to 1/1024, the other half are 0. Positions count from the
    start of the sequence: they do not restart at a new document.
    """
    frequencies = (1 / 1024) ** torch.linspace(0, 1, head_size // 4, dtype=torch.float32, device=device)
    angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] * frequencies
    angles = torch.cat([angles, torch.zeros_like(angles)], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, angles: Rotation) -> Tensor:
    """Rotate the pairs (x_j, x_{j + head_size/2}) of x, (..., length, head_size), by their angles, in fp32.

    >>> rotate(torch.tensor([[1.0, 1.0, 0.0, 0.0]]), rotation(1, 4, torch.device("cpu")))
    tensor([[1., 1., 0., 0.]])
    """
    cos, sin = angles
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos + b * sin, b * cos - a * sin], dim=-1).to(x.dtype)
