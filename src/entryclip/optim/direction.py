"""What a method makes of a gradient, and how the matrices lie in a parameter."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..arrays import is_number, on_host


class Direction(NamedTuple):
    """U = scale / divisor * numerator / denominator, kept apart: without a clip the last operation is torch's own.

    A denominator is always working memory; the numerator, which may be a buffer, only where it is said to be `fresh`.
    """

    numerator: Tensor
    denominator: Tensor | None = None
    scale: float = 1.0
    divisor: Any = 1.0  # a tensor while traced
    fresh: bool = False

    def tensor(self) -> Tensor:
        """U itself, for a clip to act on, in working memory where there is some."""
        factor = self.scale / self.divisor
        if self.denominator is not None:
            return torch.div(self.numerator, self.denominator, out=self.denominator).mul_(factor)
        if is_number(factor) and factor == 1:
            return self.numerator
        return self.numerator.mul_(factor) if self.fresh else self.numerator * factor

    @property
    def owned(self) -> bool:
        """Whether `tensor()` is working memory, free to be written to."""
        return self.fresh or self.denominator is not None

    def move_(self, p: Tensor, lr: Any) -> None:
        """p <- p - lr U, in the operations and the order of torch.optim: the same bits."""
        step = lr * self.scale / self.divisor
        if torch.compiler.is_compiling() or (isinstance(step, Tensor) and step.device.type != "cpu"):
            # As a factor: for `alpha` the host would wait for it, and inductor takes today's value for all days.
            p.sub_(step * (self.numerator if self.denominator is None else self.numerator / self.denominator))
        elif self.denominator is None:
            p.add_(self.numerator, alpha=-step)
        else:
            p.addcdiv_(self.numerator, self.denominator, value=-step)


def as_matrices(x: Tensor, group: dict[str, Any]) -> Tensor:
    """`x` with its matrices in the last two dimensions, output features in the rows, as the group says.

    As it is: leading dimensions are a batch. `flatten`: one matrix (out, rest), for convolutions. `transposed`: stored
    as (in, out). `blocks=3`: a fused (3 d, n) weight as three (d, n).
    """
    if group["flatten"] and x.ndim > 2:
        x = x.reshape(x.shape[0], -1)
    if group["transposed"]:
        x = x.mT
    if group["blocks"] > 1:
        x = x.reshape(group["blocks"], -1, x.shape[1])
    return x


def matrix_shape(shape: torch.Size, group: dict[str, Any]) -> tuple[int, ...]:
    """The shape that `as_matrices` gives a parameter of this shape."""
    sides = list(shape)
    if group["flatten"] and len(sides) > 2:
        sides = [sides[0], math.prod(sides[1:])]
    if group["transposed"]:
        sides[-2:] = sides[:-3:-1]
    if group["blocks"] > 1:
        sides = [group["blocks"], sides[0] // group["blocks"], sides[1]]
    return tuple(sides)


def from_matrices(m: Tensor, shape: torch.Size, group: dict[str, Any]) -> Tensor:
    """The way back, to a parameter of this shape."""
    if group["transposed"]:
        return m.reshape(*shape[:-2], shape[-1], shape[-2]).mT
    return m.reshape(shape)


def check_layout(p: Tensor, group: dict[str, Any]) -> None:
    """Refuse a number of blocks that does not divide the rows."""
    blocks = group["blocks"]
    if not isinstance(blocks, int) or isinstance(blocks, bool) or blocks < 1:
        raise ValueError(f"blocks must be a whole number >= 1, got {blocks!r}")
    if blocks > 1 and (p.ndim != 2 or p.shape[1 if group["transposed"] else 0] % blocks):
        raise ValueError(f"blocks={blocks} does not divide the rows of a parameter of shape {tuple(p.shape)}")


def propagated(clipped: Tensor, x: Tensor) -> Tensor:
    """`clipped` with NaN wherever `x` is not finite: an operator's limit must not hide an overflow."""
    return clipped if seen_finite(x) else torch.add(clipped, x, alpha=0)


def seen_finite(x: Tensor) -> bool:
    """Whether the host may look and sees that all entries are finite, in one pass instead of three."""
    return on_host(x) and math.isfinite(x.sum().item())
