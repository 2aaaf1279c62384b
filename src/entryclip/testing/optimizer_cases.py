"""Parameters, gradients and training runs on which optimizers are checked."""

from collections.abc import Callable

import torch
from torch import nn

from ..clip import Clip
from ..operators import hard_clip
from ..thresholds import Fixed

Make = Callable[..., torch.optim.Optimizer]
Parameters = list[nn.Parameter]


def same_future(
    one: torch.optim.Optimizer, params: Parameters, other: torch.optim.Optimizer, others: Parameters, what: str
) -> None:
    """Take three more steps with both optimizers, and compare their parameters to the bit."""
    train(one, params, 3, 6)
    train(other, others, 3, 6)
    assert all(torch.equal(p, q) for p, q in zip(params, others, strict=True)), f"{what} does not go on to the bit"


def train(optimizer: torch.optim.Optimizer, params: Parameters, first: int, last: int) -> None:
    """Take steps with gradients that depend on the step's number alone."""
    for step in range(first, last):
        give_gradients(params, step)
        optimizer.step()


def give_gradients(params: Parameters, seed: int) -> None:
    """Give each parameter a Gaussian gradient."""
    g = generator(seed)
    for p in params:
        p.grad = torch.randn(p.shape, generator=g)


def parameters() -> Parameters:
    """Return two matrices and a batch of two."""
    g = generator(7)
    return [nn.Parameter(torch.randn(shape, generator=g)) for shape in ((6, 5), (5, 6), (2, 4, 4))]


def generator(seed: int) -> torch.Generator:
    """Return a generator of random numbers with a seed."""
    return torch.Generator().manual_seed(seed)


def tight() -> Clip:
    """Return a clip that changes every entry of the parameters' updates."""
    return Clip(hard_clip, Fixed(0.01))
