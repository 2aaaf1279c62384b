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


def propagated(clipped: Tensor, x: Tensor) -> Tensor:
    """`clipped` with NaN wherever `x` is not finite: an operator's limit must not hide an overflow."""
    return clipped if seen_finite(x) else torch.add(clipped, x, alpha=0)


def seen_finite(x: Tensor) -> bool:
    """Whether the host may look and sees that all entries are finite, in one pass instead of three."""
    return on_host(x) and math.isfinite(x.sum().item())
