"""Where a NaN or an infinity began: the layer and the entry."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ....dtensor import whole

Batches = Iterable[tuple[Tensor, Tensor]]
Agree = Callable[[str], str]


class Diverged(FloatingPointError):
    """Training met a number that is not finite; `step` is the one that was not taken."""

    def __init__(self, step: int, where: str) -> None:
        super().__init__(f"training stopped at step {step}: {where}")
        self.step, self.where = step, where

    def __reduce__(self) -> Any:
        return Diverged, (self.step, self.where)


def find_origin(model: nn.Module, batches: Batches, window: int, first: Agree = lambda words: words) -> str:
    """In words: the parameter, the activation or the gradient that is not finite, looked for in this order.

    A finite model gives a finite loss, whose gradient may still overflow: the first cause in the way of the data.
    `batches` are of this process alone; `first` tells all processes what one of them has found in its own, so that
    they go on together: each looks at whole matrices, which takes them all.
    """
    parameters = _first((f"parameter {name}", p.detach()) for name, p in model.named_parameters())
    if parameters:
        return parameters
    activation = first(_first_activation(model, batches, window))
    if activation:
        return activation
    named = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    gradient = _first((f"the gradient of {name}", grad) for name, grad in reversed(named))
    return gradient or "the loss is not finite, yet parameters, activations and gradients are"


def _first(tensors: Iterable[tuple[str, Tensor]]) -> str:
    for name, tensor in tensors:
        bad = ~torch.isfinite(whole(tensor))
        if bad.any():
            place = tuple(bad.nonzero()[0].tolist())
            value, count = float(whole(tensor)[place]), int(bad.sum())
            more = f", the first of {count} such entries" if count > 1 else ""
            return f"{name} is {value} at {_entry(place)}{more}"
    return ""


def _entry(place: tuple[int, ...]) -> str:
    """
    >>> _entry((12, 90)), _entry((2, 0, 7)), _entry((3,))
    ('row 12 column 90', 'matrix 2 row 0 column 7', 'entry 3')
    """
    if len(place) < 2:
        return f"entry {place[0]}" if place else "its only entry"
    front = "".join(f"matrix {each} " for each in place[:-2])
    return f"{front}row {place[-2]} column {place[-1]}"


@torch.no_grad()
def _first_activation(model: nn.Module, batches: Batches, window: int) -> str:
    """The first module whose output is not finite, in the order of the forward pass."""
    found: list[str] = []

    def look(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and isinstance(output, Tensor):
                found.extend(filter(None, [_first([(f"the output of {name or 'the model'}", output)])]))

        return hook

    hooks = [module.register_forward_hook(look(name)) for name, module in model.named_modules()]
    try:
        for tokens, targets in batches:
            model(tokens, targets, window=window)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else ""
