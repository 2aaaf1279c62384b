"""What the noise of a gradient is measured against, from two halves of the samples.

    half A    five block means, and their entry-wise median: the signal G, whose singular directions u, v are looked at
    half B    three block means, and their median: the centre that is taken from each gradient of this half

Directions and noise come from different samples: a spike in both would capture u and v and blind the test. Medians of
means, since a spike in one sample must decide neither. And the noise is centred within its own half: what half A got
wrong is aligned with its u and v, so centring on that would make Gaussian noise look aligned (R-hat 0.14).
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..dtensor import whole

BLOCKS_A, BLOCKS_B = 5, 3
_PIECE = 1 << 15  # entries whose medians are taken at a time: what that needs beside the blocks is small


class Blocks:
    """Running means of a number of blocks, for each parameter; sample i goes to block i mod `count`."""

    def __init__(self, count: int) -> None:
        self.sizes = [0] * count
        self._means: dict[str, list[Tensor]] = {}

    def add(self, gradients: Mapping[str, Tensor]) -> None:
        """Take one more sample in."""
        at = sum(self.sizes) % len(self.sizes)
        self.sizes[at] += 1
        for name, g in gradients.items():
            means = self._means.setdefault(name, [])
            if at == len(means):
                means.append(g.clone())
            else:
                means[at].lerp_(g, 1 / self.sizes[at])

    def names(self) -> list[str]:
        """The parameters that are still here."""
        return list(self._means)

    def take(self, name: str) -> tuple[Tensor, Tensor]:
        """The median of the block means, and the mean of all samples; the blocks of this parameter are given up."""
        means = self._means.pop(name)
        mean = sum_of((m, size / sum(self.sizes)) for m, size in zip(means, self.sizes, strict=False))
        return median_(means), mean


def sum_of(terms: Iterable[tuple[Tensor, float]]) -> Tensor:
    """Sum of tensors times weights."""
    (first, weight), *rest = terms
    total = first * weight
    for tensor, weight in rest:
        total.add_(tensor, alpha=weight)
    return total


def median_(means: list[Tensor]) -> Tensor:
    """The entry-wise median of an odd number of tensors, in the memory of the first; of an even one, the lower.

    >>> median_([torch.tensor([1.0, 9.0]), torch.tensor([2.0, 2.0]), torch.tensor([1e9, 3.0])])
    tensor([2., 3.])
    """
    means = [whole(mean) for mean in means]
    flat = [mean.reshape(-1) for mean in means]
    for start in range(0, flat[0].numel(), _PIECE):
        flat[0][start : start + _PIECE] = _middle([each[start : start + _PIECE] for each in flat])
    return flat[0].view(means[0].shape)


def _middle(parts: list[Tensor]) -> Tensor:
    """The median of three or five by comparisons, which is several times faster than by sorting."""
    if len(parts) == 3:
        a, b, c = parts
        return torch.maximum(torch.minimum(a, b), torch.minimum(torch.maximum(a, b), c))
    if len(parts) == 5:  # without the least and the greatest of two pairs
        a, b, c, d, e = parts
        low = torch.maximum(torch.minimum(a, b), torch.minimum(c, d))
        return _middle([low, torch.minimum(torch.maximum(a, b), torch.maximum(c, d)), e])
    return torch.stack(parts).median(0).values
