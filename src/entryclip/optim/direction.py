"""The direction that a method makes of a gradient, in the parts that torch.optim computes it from."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..arrays import is_number
from .foreach import batchable, number_of


@dataclass(frozen=True)
class Direction:
    """U = scale / divisor * numerator / denominator.

    The parts are kept apart so that without a clip the last operation is torch's own, and the step is equal to the bit.
    `fresh` says that the numerator is working memory, not a buffer; a denominator always is.
    """

    numerator: Tensor
    denominator: Tensor | None = None
    scale: float = 1.0
    divisor: Any = 1.0  # a number, or a tensor where the host does not read the step number
    fresh: bool = False

    @property
    def is_owned(self) -> bool:
        """Tell whether the parts include working memory, which `materialize_` writes to."""
        return self.fresh or self.denominator is not None

    def tensor(self) -> Tensor:
        """Return U and leave all parts as they are."""
        u = self.numerator if self.denominator is None else self.numerator / self.denominator
        factor = self.scale / self.divisor
        return u if is_number(factor) and factor == 1 else u * factor

    def materialize_(self) -> Tensor:
        """Return U, written over the working memory of this direction, which is spent afterwards."""
        u, factor = self.numerator, self.scale / self.divisor
        if self.denominator is not None:
            u = torch.div(u, self.denominator, out=self.denominator)
        if is_number(factor) and factor == 1:
            return u
        return u.mul_(factor) if self.is_owned else u * factor

    def move_(self, w: Tensor, lr: Any, *, capturable: bool = False) -> None:
        """Take the step w <- w - lr U in the operations and the order of torch.optim, which gives the same bits.

        With `capturable`, a step size that is a tensor is not read on the host.
        """
        step = lr * self.scale / self.divisor
        is_tensor = isinstance(step, Tensor)
        if torch.compiler.is_compiling() or (is_tensor and (capturable or step.device.type != "cpu")):
            # As a factor: for `alpha` the host would wait for it, and the compiler would freeze its present value.
            u = self.numerator if self.denominator is None else self.numerator / self.denominator
            # One pass less where the step size lies beside the weights; a tensor of the host may only be a factor.
            w.addcmul_(u, step, value=-1) if is_tensor and step.device == w.device else w.sub_(step * u)
        elif self.denominator is None:
            w.add_(self.numerator, alpha=-step)
        else:
            w.addcdiv_(self.numerator, self.denominator, value=-step)


def materialize_all_(directions: list[Direction]) -> list[Tensor]:
    """Do `materialize_` for each direction."""
    numerators, denominators = [d.numerator for d in directions], _denominators(directions)
    if not batchable(numerators) or len(denominators) < len(numerators):
        return [d.materialize_() for d in directions]
    us = list(torch._foreach_div(numerators, denominators))
    factors = [d.scale / d.divisor for d in directions]
    if not all(map(is_number, factors)):
        return [u.mul_(factor) for u, factor in zip(us, factors, strict=True)]
    if any(factor != 1 for factor in factors):
        torch._foreach_mul_(us, factors)
    return us


def move_all_(directions: list[Direction], ws: list[Tensor], lr: Any, *, capturable: bool = False) -> None:
    """Do `move_` for each pair of a direction and weights: one by one where a step size stays a tensor."""
    alike: dict[tuple[bool, float, Any], list[int]] = {}  # parameters that the same operation moves
    if batchable(ws):
        for i, each in enumerate(directions):
            alike.setdefault((each.denominator is None, each.scale, each.divisor), []).append(i)
    sizes = [lr * scale / divisor for _, scale, divisor in alike]
    steps = sizes if capturable else [number_of(size) for size in sizes]
    if not steps or not all(map(is_number, steps)):
        for direction, w in zip(directions, ws, strict=True):
            direction.move_(w, lr, capturable=capturable)
        return
    for (is_whole, _, _), places, step in zip(alike, alike.values(), steps, strict=True):
        here, numerators = [ws[i] for i in places], [directions[i].numerator for i in places]
        if is_whole:
            torch._foreach_add_(here, numerators, alpha=-step)
        else:
            torch._foreach_addcdiv_(here, numerators, _denominators([directions[i] for i in places]), value=-step)


def _denominators(directions: list[Direction]) -> list[Tensor]:
    """Return the denominators of the directions that have one."""
    return [d.denominator for d in directions if d.denominator is not None]
