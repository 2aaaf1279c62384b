"""A model whose gradient noise is known: the gradient of each weight is its signal plus a draw from a noise model.

Each sample has a number, and the noise of a number is always the same, so that it can be asked for twice.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Generator, Tensor, nn

from ...noise import Cauchy, Contamination, HeavyLowRank, LowRankSum, StudentT

Kind = Callable[[Tensor, Generator], Tensor]  # the signal and a generator -> noise
Shape = tuple[int, int]


def gaussian(signal: Tensor, generator: Generator) -> Tensor:
    """Independent, of scale 1."""
    return torch.randn(signal.shape, generator=generator)


def cauchy(signal: Tensor, generator: Generator) -> Tensor:
    """5 % of the entries are Cauchy, of scale 1 in a Gaussian bulk of scale 1."""
    return Contamination(0.05, 1.0, Cauchy(1.0)).sample(signal.shape, generator)


def student(signal: Tensor, generator: Generator) -> Tensor:
    """5 % of the entries are Student's t with 2 degrees of freedom, the paper's mixture: the hardest to see."""
    return Contamination(0.05, 1.0, StudentT(2.0)).sample(signal.shape, generator)


def aligned(signal: Tensor, generator: Generator) -> Tensor:
    """Along the signal's first direction, over a little Gaussian noise."""
    u, _, v = torch.linalg.svd(signal, full_matrices=False)
    size = math.sqrt(signal.numel()) * torch.randn((), generator=generator)
    return size * torch.outer(u[:, 0], v[0]) + 0.3 * gaussian(signal, generator)


def multiplicative(signal: Tensor, generator: Generator) -> Tensor:
    """Gaussian, of another size in each sample: 2^(2z), z normal."""
    return 2 ** (2 * torch.randn((), generator=generator)) * gaussian(signal, generator)


def entrywise(signal: Tensor, generator: Generator) -> Tensor:
    """Each entry of the signal times a Gaussian number, over a little Gaussian noise."""
    return 3 * signal * gaussian(signal, generator) + 0.1 * gaussian(signal, generator)


def low_rank(signal: Tensor, generator: Generator) -> Tensor:
    """Four random directions, over a little Gaussian noise."""
    noise = LowRankSum(4, 0.5 * math.sqrt(signal.numel())).sample(signal.shape, generator)
    return noise + 0.1 * gaussian(signal, generator)


def heavy_low_rank(signal: Tensor, generator: Generator) -> Tensor:
    """Four directions with entries of Student's t_2: heavy-tailed rows and columns rather than entries."""
    noise = HeavyLowRank(4, StudentT(2.0)).sample(signal.shape, generator)
    return noise + 0.1 * gaussian(signal, generator)


KINDS: dict[str, Kind] = {
    "gaussian": gaussian,
    "aligned": aligned,
    "multiplicative": multiplicative,
    "entrywise": entrywise,
    "low_rank": low_rank,
    "heavy_low_rank": heavy_low_rank,
    "student": student,
    "cauchy": cauchy,
}


class Known(nn.Module):
    """A weight for each name, all zero; the name says nothing, the kind and the shape beside it do.

    >>> model = Known({"a": (gaussian, (3, 4)), "b": (cauchy, (5, 2))})
    >>> loss(model, 7).backward()
    >>> model.weights["b"].grad.shape
    torch.Size([5, 2])
    """

    def __init__(self, layers: Mapping[str, tuple[Kind, Shape]], seed: int = 0) -> None:
        super().__init__()
        self.layers, self.seed = layers, seed
        self.weights = nn.ParameterDict({name: torch.zeros(shape) for name, (_, shape) in layers.items()})
        self.signals = {name: _signal(shape, seed + i) for i, (name, (_, shape)) in enumerate(layers.items())}

    def gradients(self, number: int) -> dict[str, Tensor]:
        """Signal plus noise of this sample."""
        found = {}
        for i, (name, (noise, _)) in enumerate(self.layers.items()):
            generator = Generator().manual_seed(1_000_003 * (self.seed + i) + number)
            found[name] = self.signals[name] + noise(self.signals[name], generator)
        return found


def loss(model: Known, number: int) -> Tensor:
    """Linear in the weights: its gradients are `model.gradients(number)`."""
    return torch.stack([(model.weights[name] * g).sum() for name, g in model.gradients(number).items()]).sum()


def _signal(shape: Shape, seed: int) -> Tensor:
    """A matrix with a direction that stands out."""
    generator = Generator().manual_seed(seed)
    u, v = (nn.functional.normalize(torch.randn(side, generator=generator), dim=0) for side in shape)
    return 0.25 * math.sqrt(shape[0] * shape[1]) * torch.outer(u, v) + 0.1 * torch.randn(shape, generator=generator)
