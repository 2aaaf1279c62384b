"""Robust centers of gradients: the entry-wise median of the means of a few blocks of samples.

The probe splits the samples into two halves:

    first half     five block means; their median is the signal G, whose singular directions u, v are used
    second half    three block means; their median is subtracted from each gradient of this half to get its noise

Directions and noise come from different samples, since a spike in both would capture u and v and blind the test.
Medians of means are used, since a spike in one sample must decide neither. And the noise is centered within its own
half: the error of the first half's center is aligned with its u and v, so centering on it would make Gaussian noise
look aligned (R-hat 0.14).
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ...dtensor import whole

SIGNAL_BLOCKS, NOISE_BLOCKS = 5, 3  # odd, so that the median is one of the means
_PIECE = 1 << 15  # entries whose medians are taken at a time, which keeps the working memory small


class BlockMeans:
    """Running means of `count` blocks of samples, for each parameter; sample i goes to block i mod `count`."""

    def __init__(self, count: int) -> None:
        self.sizes = [0] * count
        self._means: dict[str, list[Tensor]] = {}

    def add(self, gradients: Mapping[str, Tensor]) -> None:
        """Add the gradients of one sample, by parameter name."""
        at = sum(self.sizes) % len(self.sizes)
        self.sizes[at] += 1
        for name, g in gradients.items():
            means = self._means.setdefault(name, [])
            if at == len(means):
                means.append(g.clone())
            else:
                means[at].lerp_(g, 1 / self.sizes[at])

    def names(self) -> list[str]:
        """Return the parameters that were not popped yet."""
        return list(self._means)

    def pop(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the median of the block means and the mean of all samples, and free the blocks of this parameter."""
        means = self._means.pop(name)
        mean = _weighted_sum((m, size / sum(self.sizes)) for m, size in zip(means, self.sizes, strict=False))
        return median_(means), mean


def _weighted_sum(terms: Iterable[tuple[Tensor, float]]) -> Tensor:
    (first, weight), *rest = terms
    total = first * weight
    for tensor, weight in rest:
        total.add_(tensor, alpha=weight)
    return total


def median_(tensors: list[Tensor]) -> Tensor:
    """Return the entry-wise median of an odd number of tensors, written into the first; of an even one, the lower.

    >>> median_([torch.tensor([1.0, 9.0]), torch.tensor([2.0, 2.0]), torch.tensor([1e9, 3.0])])
    tensor([2., 3.])
    """
    tensors = [whole(each) for each in tensors]
    flat = [each.reshape(-1) for each in tensors]
    for start in range(0, flat[0].numel(), _PIECE):
        flat[0][start : start + _PIECE] = _median([each[start : start + _PIECE] for each in flat])
    return flat[0].view(tensors[0].shape)


def _median(parts: list[Tensor]) -> Tensor:
    """Return the entry-wise median; of three or five by comparisons, several times faster than by sorting."""
    if len(parts) == 3:
        a, b, c = parts
        return torch.maximum(torch.minimum(a, b), torch.minimum(torch.maximum(a, b), c))
    if len(parts) == 5:  # the lesser minimum and the greater maximum of two pairs cannot be the median
        a, b, c, d, e = parts
        low = torch.maximum(torch.minimum(a, b), torch.minimum(c, d))
        return _median([low, torch.minimum(torch.maximum(a, b), torch.maximum(c, d)), e])
    return torch.stack(parts).median(0).values
