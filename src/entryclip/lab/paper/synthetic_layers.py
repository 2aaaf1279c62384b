"""A model whose layers have gradient noise of a chosen kind: every gradient is a fixed signal plus a random draw.

A sample is a number, and the noise of a number is always the same, so that a sample can be evaluated twice.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Generator, Tensor, nn

from ...noise import Cauchy, Contamination, HeavyLowRank, LowRankSum, StudentT

NoiseKind = Callable[[Tensor, Generator], Tensor]  # (signal, generator) -> noise, of the signal's shape
Shape = tuple[int, int]


def gaussian(signal: Tensor, generator: Generator) -> Tensor:
    """Independent standard Gaussian entries."""
    return torch.randn(signal.shape, generator=generator)


def cauchy(signal: Tensor, generator: Generator) -> Tensor:
    """Standard Gaussian entries, of which 5 % are replaced by Cauchy entries of scale 1."""
    return Contamination(0.05, 1.0, Cauchy(1.0)).sample(signal.shape, generator)


def student(signal: Tensor, generator: Generator) -> Tensor:
    """Standard Gaussian entries, of which 5 % are replaced by Student's t with 2 degrees of freedom.

    This is the paper's mixture, and the contamination that is hardest to detect.
    """
    return Contamination(0.05, 1.0, StudentT(2.0)).sample(signal.shape, generator)


def aligned(signal: Tensor, generator: Generator) -> Tensor:
    """A random multiple of the signal's first singular direction, plus weak Gaussian noise."""
    u, _, v = torch.linalg.svd(signal, full_matrices=False)
    size = math.sqrt(signal.numel()) * torch.randn((), generator=generator)
    return size * torch.outer(u[:, 0], v[0]) + 0.3 * gaussian(signal, generator)


def multiplicative(signal: Tensor, generator: Generator) -> Tensor:
    """Gaussian entries whose common scale 2^(2z), z normal, differs from sample to sample."""
    return 2 ** (2 * torch.randn((), generator=generator)) * gaussian(signal, generator)


def entrywise(signal: Tensor, generator: Generator) -> Tensor:
    """Each entry of the signal times its own Gaussian number, plus weak Gaussian noise."""
    return 3 * signal * gaussian(signal, generator) + 0.1 * gaussian(signal, generator)


def low_rank(signal: Tensor, generator: Generator) -> Tensor:
    """A random matrix of rank four, plus weak Gaussian noise."""
    noise = LowRankSum(4, 0.5 * math.sqrt(signal.numel())).sample(signal.shape, generator)
    return noise + 0.1 * gaussian(signal, generator)


def heavy_low_rank(signal: Tensor, generator: Generator) -> Tensor:
    """A random matrix of rank four whose factors have Student's t_2 entries, plus weak Gaussian noise.

    Whole rows and columns are heavy-tailed here, rather than single entries.
    """
    noise = HeavyLowRank(4, StudentT(2.0)).sample(signal.shape, generator)
    return noise + 0.1 * gaussian(signal, generator)


NOISE_KINDS: dict[str, NoiseKind] = {
    "gaussian": gaussian,
    "aligned": aligned,
    "multiplicative": multiplicative,
    "entrywise": entrywise,
    "low_rank": low_rank,
    "heavy_low_rank": heavy_low_rank,
    "student": student,
    "cauchy": cauchy,
}


class SyntheticLayers(nn.Module):
    """A model with one zero weight matrix per layer, whose gradients are a fixed signal plus noise.

    Use it to test a diagnostic where the answer is known. `layers` maps a layer's name to its kind of noise and its
    shape. The same seed gives the same signals, and the same seed and sample the same noise.

    >>> model = SyntheticLayers({"a": (gaussian, (3, 4)), "b": (cauchy, (5, 2))})
    >>> loss(model, 7).backward()
    >>> model.weights["b"].grad.shape
    torch.Size([5, 2])
    """

    def __init__(self, layers: Mapping[str, tuple[NoiseKind, Shape]], seed: int = 0) -> None:
        super().__init__()
        self.layers, self.seed = layers, seed
        self.weights = nn.ParameterDict({name: torch.zeros(shape) for name, (_, shape) in layers.items()})
        self.signals = {name: _signal(shape, seed + i) for i, (name, (_, shape)) in enumerate(layers.items())}

    def gradients(self, number: int) -> dict[str, Tensor]:
        """The gradient of every layer for the sample `number`: its signal plus its noise."""
        found = {}
        for i, (name, (noise, _)) in enumerate(self.layers.items()):
            generator = Generator().manual_seed(1_000_003 * (self.seed + i) + number)
            found[name] = self.signals[name] + noise(self.signals[name], generator)
        return found


def loss(model: SyntheticLayers, number: int) -> Tensor:
    """A loss that is linear in the weights, so that its gradients are `model.gradients(number)`."""
    return torch.stack([(model.weights[name] * g).sum() for name, g in model.gradients(number).items()]).sum()


def _signal(shape: Shape, seed: int) -> Tensor:
    """A Gaussian matrix plus one strong direction."""
    generator = Generator().manual_seed(seed)
    u, v = (nn.functional.normalize(torch.randn(side, generator=generator), dim=0) for side in shape)
    return 0.25 * math.sqrt(shape[0] * shape[1]) * torch.outer(u, v) + 0.1 * torch.randn(shape, generator=generator)
