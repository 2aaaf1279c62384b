"""Training that met a NaN or an infinity: the exception, and the search for the layer and entry where it began."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ....dtensor import whole

Samples = Iterable[tuple[Tensor, Tensor]]  # tokens and targets


class Diverged(FloatingPointError):
    """Raised in place of an optimizer step whose loss or gradient is not finite.

    step    the number of the step that was not taken
    where   the first value that is not finite, in words
    """

    def __init__(self, step: int, where: str) -> None:
        super().__init__(f"training stopped at step {step}: {where}")
        self.step, self.where = step, where

    def __reduce__(self) -> Any:
        return Diverged, (self.step, self.where)


def find_origin(
    model: nn.Module, samples: Samples, window: int, agree: Callable[[str], str] = lambda message: message
) -> str:
    """Describe the parameter, activation or gradient that is not finite, looked for in this order.

    The order is that of cause and effect: a finite model may still give an activation that overflows, and a finite
    loss a gradient that does.

    samples     the batch of this process, in microbatches
    agree       broadcasts what one process found in its own samples, so that all processes take the same branch: each
                looks at whole parameters, which is a collective operation where they are sharded
    """
    parameter = _first_nonfinite((f"parameter {name}", p.detach()) for name, p in model.named_parameters())
    if parameter:
        return parameter
    activation = agree(_first_activation(model, samples, window))
    if activation:
        return activation
    named = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    gradient = _first_nonfinite((f"the gradient of {name}", grad) for name, grad in reversed(named))
    return gradient or "the loss is not finite, yet parameters, activations and gradients are"


def _first_nonfinite(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Describe the first entry that is not finite; an empty string if all are finite."""
    for name, tensor in tensors:
        bad = ~torch.isfinite(whole(tensor))
        if bad.any():
            place = tuple(bad.nonzero()[0].tolist())
            value, count = float(whole(tensor)[place]), int(bad.sum())
            more = f", the first of {count} such entries" if count > 1 else ""
            return f"{name} is {value} at {_place_in_words(place)}{more}"
    return ""


def _place_in_words(place: tuple[int, ...]) -> str:
    """Name an index of a vector, a matrix or a batch of matrices.

    >>> _place_in_words((12, 90)), _place_in_words((2, 0, 7)), _place_in_words((3,))
    ('row 12 column 90', 'matrix 2 row 0 column 7', 'entry 3')
    """
    if len(place) < 2:
        return f"entry {place[0]}" if place else "its only entry"
    front = "".join(f"matrix {each} " for each in place[:-2])
    return f"{front}row {place[-2]} column {place[-1]}"


@torch.no_grad()
def _first_activation(model: nn.Module, samples: Samples, window: int) -> str:
    """Describe the first module output that is not finite, in the order of the forward pass."""
    found: list[str] = []

    def watch(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and isinstance(output, Tensor):
                found.extend(filter(None, [_first_nonfinite([(f"the output of {name or 'the model'}", output)])]))

        return hook

    hooks = [module.register_forward_hook(watch(name)) for name, module in model.named_modules()]
    try:
        for tokens, targets in samples:
            model(tokens, targets, window=window)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else ""
