"""Matrices whose answer is known: heavy-tailed entries must keep their gain, Gaussian ones with scales must lose it."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from ....noise import Cauchy, Contamination, Laplace, StudentT

Draw = Callable[[tuple[int, int], Generator], Tensor]
SPREAD = 0.5  # the standard deviation of the logarithms of row and of column scales


def _gaussian(shape: tuple[int, int], generator: Generator) -> Tensor:
    return torch.randn(shape, generator=generator)


def _scaled(entries: Draw) -> Draw:
    """Return a draw of the same entries in rows and columns of log-normal scale."""

    def draw(shape: tuple[int, int], generator: Generator) -> Tensor:
        rows, columns = (torch.exp(SPREAD * torch.randn(n, generator=generator)) for n in shape)
        return rows[:, None] * entries(shape, generator) * columns

    return draw


HEAVY: dict[str, Draw] = {  # a clip gains on these, whatever is divided out
    "t_5": StudentT(5.0).sample,
    "Laplace": Laplace(1.0).sample,
    "t_3": StudentT(3.0).sample,
    "t_3 with scales": _scaled(StudentT(3.0).sample),
    "5 % Cauchy": Contamination(0.05, 1.0, Cauchy(3.0)).sample,
}
LIGHT: dict[str, Draw] = {"Gaussian": _gaussian, "Gaussian with scales": _scaled(_gaussian)}
CONTROLS = {**LIGHT, **HEAVY}
