"""Operations on lists of tensors, in one call of torch's `_foreach` functions where the tensors allow it.

On a CPU a `_foreach` function loops over the same operations in C++, so that its results are those of a Python loop to
the bit; on a device it is a few launches for the whole list.
"""

from typing import Any

import torch
from torch import Tensor

from ..arrays import is_number
from .groups import HALF

_ORDINARY = (Tensor, torch.nn.Parameter)


def is_ordinary(x: Tensor) -> bool:
    """Tell whether `x` is an ordinary tensor: not of a subclass, not under vmap, not while torch.compile traces."""
    if torch.compiler.is_compiling() or type(x) not in _ORDINARY:
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(x)


def batchable(xs: list[Tensor]) -> bool:
    """Tell whether these tensors are more than one, all ordinary, and have the same bits from a `_foreach` function.

    Half precision on a CPU has not: there torch rounds the factor of a product to half precision first.
    """
    if len(xs) < 2 or torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return all(type(x) in _ORDINARY and not (x.dtype in HALF and x.is_cpu) for x in xs)


def number_of(value: Any) -> Any:
    """Return a tensor on the host as a number; anything else as it is, so that the host never waits for a device."""
    if isinstance(value, Tensor) and value.is_cpu and value.numel() == 1 and is_ordinary(value):
        return value.item()
    return value


def multiply_all_(xs: list[Tensor], factor: Any, *, capturable: bool = False) -> None:
    """Multiply each tensor by one factor, a number or a tensor of one entry.

    With `capturable`, a factor that is a tensor is not read on the host.
    """
    factor = factor if capturable else number_of(factor)
    if batchable(xs) and (is_number(factor) or (is_ordinary(factor) and factor.device == xs[0].device)):
        torch._foreach_mul_(xs, factor if is_number(factor) else factor.reshape(()))
        return
    for x in xs:
        x.mul_(factor)


def negate_all(xs: list[Tensor]) -> list[Tensor]:
    """Return the negatives."""
    return list(torch._foreach_neg(xs)) if batchable(xs) else [-x for x in xs]


def copy_all_(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source into its target, which may have another dtype."""
    if batchable(targets) and batchable(sources):
        torch._foreach_copy_(targets, sources)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
