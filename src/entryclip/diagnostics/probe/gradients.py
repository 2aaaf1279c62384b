"""Gradients of single batches, by an ordinary forward and backward pass each, with the model left as it was.

Gradients are read from `.grad`, so nothing depends on how a layer computes: every kind of layer, tied weights, bare
parameters, compiled and sharded models work.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...arrays import widen
from ...dtensor import whole

Loss = Callable[[Any, Any], Tensor]  # (model, batch) -> one number


class SampleGradients:
    """Computes the gradients of the parameters `names` of a model, one batch at a time.

    Use it inside `preserved(model)`, since it clears `.grad` and seeds torch's generator. Batches whose loss or
    gradient is not finite are recorded in `bad`, with the reason.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> with preserved(model):
    ...     found = SampleGradients(model, lambda model, x: model(x).sum(), ["weight"])(0, torch.tensor([[3.0, 4.0]]))
    >>> found, model.weight.grad
    ({'weight': tensor([[3., 4.]])}, None)
    """

    def __init__(self, model: nn.Module, loss: Loss, names: Sequence[str]) -> None:
        self.model, self.loss, self.names = model, loss, names
        self.bad: dict[int, str] = {}  # the samples that are left out, and why

    def __call__(self, number: int, batch: Any) -> dict[str, Tensor] | None:
        """Return the gradients of this sample by parameter name, in fp32 at least, or None where they are not finite.

        `number` also seeds torch's generator, so that dropout is the same when a sample is seen again.
        """
        torch.manual_seed(number)
        with torch.enable_grad():
            self._checked(self.loss(self.model, batch), number).backward()  # type: ignore[no-untyped-call]
        found = {name: _dense_gradient(self.model.get_parameter(name)) for name in self.names}
        for p in self.model.parameters():
            p.grad = None
        # a finite sum proves finite entries; only where it is not, all entries are looked at
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


def _dense_gradient(p: Tensor) -> Tensor:
    """Return the gradient of a parameter as a dense tensor; zero where the loss did not reach it."""
    if p.grad is None:
        return torch.zeros_like(widen(p.detach()))
    return widen(p.grad.to_dense() if p.grad.is_sparse else p.grad)


@contextmanager
def preserved(model: nn.Module) -> Iterator[None]:
    """Restore the model and all random number generators at the end, also after an error.

    That is: buffers, `.grad`, train or eval mode, and the generators of torch, numpy and Python. Parameters are not
    copied: the code inside must not write to them. The caller's gradients are put aside; inside, `.grad` is None.
    """
    gradients = [(p, p.grad) for p in model.parameters()]
    buffer_values = [(b, b.detach().clone()) for b in model.buffers()]
    buffer_objects = [(module, dict(module._buffers)) for module in model.modules()]  # code may replace a buffer
    modes = [(module, module.training) for module in model.modules()]
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 - the caller's global one
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            for p, _ in gradients:
                p.grad = None
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        for module, mode in modes:
            module.training = mode
        for module, held in buffer_objects:
            module._buffers.update(held)
        with torch.no_grad():
            for buffer, value in buffer_values:
                buffer.copy_(value)
        for p, g in gradients:
            p.grad = g
