"""Batches of a run, some of which are corrupted: random tokens, or targets in a random order."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# (tokens, targets, vocabulary, generator) -> the tokens and targets that replace them, all (sequences, length)
BatchCorruption = Callable[[Tensor, Tensor, int, torch.Generator], tuple[Tensor, Tensor]]


def random_tokens(
    tokens: Tensor, targets: Tensor, vocabulary: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return tokens and targets drawn evenly from the vocabulary, as from a broken shard."""
    first, second = (torch.randint(0, vocabulary, tokens.shape, generator=generator) for _ in range(2))
    return first, second


def shuffled_targets(
    tokens: Tensor, targets: Tensor, vocabulary: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the tokens as they are, and the targets of the whole batch in a random order: labels that went astray.

    >>> tokens, targets = torch.arange(6).reshape(2, 3), torch.arange(1, 7).reshape(2, 3)
    >>> same, shuffled = shuffled_targets(tokens, targets, 7, torch.Generator().manual_seed(0))
    >>> same is tokens, sorted(shuffled.flatten().tolist())
    (True, [1, 2, 3, 4, 5, 6])
    """
    order = torch.randperm(targets.numel(), generator=generator)
    return tokens, targets.flatten()[order].reshape(targets.shape)


BATCH_CORRUPTIONS: dict[str, BatchCorruption] = {"random": random_tokens, "shuffled": shuffled_targets}


class CorruptedBatches:
    """An iterator over batches that corrupts `count` of them, from the position `first` on.

    What is drawn depends on the seed and the position alone: it is the same for every training method.
    """

    def __init__(
        self, batches: Any, corruption: BatchCorruption, first: int, count: int, vocabulary: int, *, seed: int
    ) -> None:
        self.batches, self._corruption, self._vocabulary, self._seed = batches, corruption, vocabulary, seed
        self.spoiled = range(first, first + count)

    def __next__(self) -> tuple[Tensor, Tensor]:
        position = self.batches.position
        tokens, targets = next(self.batches)
        if position not in self.spoiled:
            return tokens, targets
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + position)
        return self._corruption(tokens, targets, self._vocabulary, generator)
