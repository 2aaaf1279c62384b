"""Gradients of single batches: one ordinary forward and backward each, read from `.grad`, and the model is left as it
was: parameters, buffers, `.grad`, train or eval mode, and the state of every random number generator.

Nothing depends on how a layer computes: every layer, tied weights, bare parameters, compiled and sharded models work.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..arrays import widen
from ..dtensor import whole

Loss = Callable[[Any, Any], Tensor]  # (model, batch) -> one number


class Gradients:
    """Of the parameters `names` of a model; use it inside `untouched(model)`.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> with untouched(model):
    ...     found = Gradients(model, lambda model, x: model(x).sum(), ["weight"])(0, torch.tensor([[3.0, 4.0]]))
    >>> found, model.weight.grad
    ({'weight': tensor([[3., 4.]])}, None)
    """

    def __init__(self, model: nn.Module, loss: Loss, names: Sequence[str]) -> None:
        self.model, self.loss, self.names = model, loss, names
        self.bad: dict[int, str] = {}  # samples that are left out, and why

    def __call__(self, number: int, batch: Any) -> dict[str, Tensor] | None:
        """The gradients of this sample in fp32 at least, or None where they are not finite.

        `number` is also the seed: dropout is the same when a sample is seen again.
        """
        torch.manual_seed(number)
        with torch.enable_grad():
            self._checked(self.loss(self.model, batch), number).backward()  # type: ignore[no-untyped-call]
        found = {name: _dense(self.model.get_parameter(name)) for name in self.names}
        for p in self.model.parameters():
            p.grad = None
        wrong = [name for name, g in found.items() if not math.isfinite(float(whole(g.sum())))]
        if wrong := [name for name in wrong if not bool(torch.isfinite(whole(found[name])).all())]:
            self.bad.setdefault(number, f"sample {number}: the gradient of {wrong[0]} has NaN or infinite entries")
        return None if number in self.bad else found

    def _checked(self, value: Any, number: int) -> Tensor:
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            got += " without a graph" if isinstance(value, Tensor) and not value.requires_grad else ""
            raise TypeError(f"loss(model, batch) must return one number as a tensor with its graph, got {got}")
        if not math.isfinite(float(whole(value.detach()))):
            self.bad.setdefault(number, f"sample {number}: the loss is {float(whole(value.detach()))}")
        return value


def _dense(p: Tensor) -> Tensor:
    """The gradient of a parameter; zero where the loss did not reach it."""
    if p.grad is None:
        return torch.zeros_like(widen(p.detach()))
    return widen(p.grad.to_dense() if p.grad.is_sparse else p.grad)


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Whatever happens inside, afterwards the model and the random number generators are as they were.

    Gradients that the caller has are put aside, not copied: inside, `.grad` is None.
    """
    gradients = [(p, p.grad) for p in model.parameters()]
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    places = [(module, dict(module._buffers)) for module in model.modules()]
    modes = [(module, module.training) for module in model.modules()]
    ours, theirs = random.getstate(), np.random.get_state()  # noqa: NPY002 - the caller's, whatever it is
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            for p, _ in gradients:
                p.grad = None
            yield
    finally:
        random.setstate(ours)
        np.random.set_state(theirs)  # noqa: NPY002
        for module, mode in modes:
            module.training = mode
        for module, held in places:
            module._buffers.update(held)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for p, g in gradients:
            p.grad = g
