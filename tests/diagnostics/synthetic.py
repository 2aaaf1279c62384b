"""Models whose gradients are known: the gradient of each weight is its signal plus noise drawn by number."""

import math

import torch
from torch import nn

import entryclip as ec


def signal(shape, seed):
    """A matrix with a direction that stands out."""
    g = torch.Generator().manual_seed(seed)
    u, v = (nn.functional.normalize(torch.randn(side, generator=g), dim=0) for side in shape)
    return 0.25 * math.sqrt(shape[0] * shape[1]) * torch.outer(u, v) + 0.1 * torch.randn(shape, generator=g)


def gaussian(G, g):
    return torch.randn(G.shape, generator=g)


def cauchy(G, g):
    """5 % of Cauchy noise."""
    return ec.noise.Contamination(0.05, 1.0, ec.noise.Cauchy(1.0)).sample(G.shape, g)


def aligned(G, g):
    """Along the signal's first direction, over a little Gaussian noise."""
    u, _, v = torch.linalg.svd(G, full_matrices=False)
    size = math.sqrt(G.numel()) * torch.randn((), generator=g)
    return size * torch.outer(u[:, 0], v[0]) + 0.3 * torch.randn(G.shape, generator=g)


def multiplicative(G, g):
    """Gaussian noise of another size for each sample."""
    return 2 ** (2 * torch.randn((), generator=g)) * torch.randn(G.shape, generator=g)


def entrywise(G, g):
    """Each entry of the signal times a Gaussian number."""
    return 3 * G * torch.randn(G.shape, generator=g) + 0.1 * torch.randn(G.shape, generator=g)


def low_rank(G, g):
    return ec.noise.LowRankSum(4, 0.5 * math.sqrt(G.numel())).sample(G.shape, g) + 0.1 * torch.randn(
        G.shape, generator=g
    )


def heavy_low_rank(G, g):
    return ec.noise.HeavyLowRank(4, ec.noise.StudentT(2.0)).sample(G.shape, g) + 0.1 * torch.randn(G.shape, generator=g)


class Known(nn.Module):
    """Weights named by their noise: {"cauchy0": (cauchy, (32, 24))}."""

    def __init__(self, kinds, seed=0):
        super().__init__()
        self.kinds = kinds
        self.weights = nn.ParameterDict({name: torch.zeros(shape) for name, (_, shape) in kinds.items()})
        self.signals = {name: signal(shape, seed + i) for i, (name, (_, shape)) in enumerate(kinds.items())}
        self.seed = seed


def loss(model, number):
    """Its gradient is signal + noise; the noise of sample `number` is always the same."""
    total = 0
    for i, (name, (noise, _)) in enumerate(model.kinds.items()):
        G = model.signals[name]
        g = torch.Generator().manual_seed(10_000 * (model.seed + i) + number)
        total = total + (model.weights[name] * (G + noise(G, g))).sum()
    return total
