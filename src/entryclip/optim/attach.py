"""Clip the gradients that any torch optimizer sees, without changing the optimizer's class."""

from types import MethodType, TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..clip import Clip
from ..thresholds import State, Step
from .capture import refuse_captured_memory
from .device_shrinkage import shrink_on_device, shrinks_on_device
from .finite import propagated


def attach(optimizer: Optimizer, *, grad: Clip, clip_vectors: bool = False) -> "Attached":
    """Make `optimizer` step with clipped gradients from now on; return the handle that undoes it.

    The `.grad` of the parameters are the same after a step as before it. Parameters with fewer than two dimensions are
    not clipped unless `clip_vectors` is set. Under a GradScaler the clip sees unscaled gradients, and an overflow still
    makes the scaler skip the step. Two uses are refused with a ValueError: a closure, which would make new gradients
    inside the step, and an optimizer that unscales inside its own fused step.

    >>> import entryclip as ec
    >>> w = torch.nn.Parameter(torch.zeros(1, 2))
    >>> w.grad = torch.tensor([[1.0, 1000.0]])
    >>> optimizer = torch.optim.SGD([w], lr=1.0)
    >>> attached = attach(optimizer, grad=ec.Clip(ec.hard_clip, ec.Fixed(2.0)))
    >>> optimizer.step()
    >>> w.data, w.grad
    (tensor([[-1., -2.]]), tensor([[   1., 1000.]]))
    >>> attached.undo()
    """
    if not isinstance(grad, Clip):
        raise TypeError(f"grad must be a Clip such as entryclip.smooth(0.99), got {grad!r}")
    if hasattr(optimizer.step, "_entryclip"):
        raise ValueError("a clip is attached to this optimizer already: undo it first")
    return Attached(optimizer, grad, clip_vectors)


class Attached:
    """A clip in front of an optimizer's step. It stays until `undo()`, or to the end of a `with` block."""

    def __init__(self, optimizer: Optimizer, clip: Clip, clip_vectors: bool):
        self.optimizer, self.clip, self.clip_vectors = optimizer, clip, clip_vectors
        self.steps = 0
        self._memory: dict[Tensor, State] = {}
        self._own = optimizer.__dict__.get("step")  # set where a scheduler has wrapped it
        self._step = optimizer.step

        def step(_: Optimizer, closure: Any = None) -> Any:  # a later scheduler rebinds this to the optimizer
            return self.step(closure)

        vars(step).update(vars(getattr(optimizer.step, "__func__", optimizer.step)), _entryclip=True)
        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]

    def undo(self) -> None:
        """Restore the optimizer's own step."""
        if self._own is None:
            self.optimizer.__dict__.pop("step", None)
        else:
            self.optimizer.step = self._own  # type: ignore[method-assign]

    def step(self, closure: Any = None) -> Any:
        """Run the optimizer's step with clipped gradients in place of the real ones."""
        if closure is not None:
            raise ValueError("a closure makes new gradients inside the step, which cannot be clipped from outside")
        if getattr(self.optimizer, "grad_scale", None) is not None:
            raise ValueError("this fused optimizer unscales inside its step: call scaler.unscale_(optimizer) before it")
        self.steps += 1
        real = [(p, p.grad) for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        try:
            for group in self.optimizer.param_groups:
                for p in group["params"]:
                    if p.grad is not None and (p.ndim >= 2 or self.clip_vectors):
                        p.grad = self._clipped(p, p.grad, group["lr"])
            return self._step()
        finally:
            for p, g in real:
                p.grad = g

    @torch.no_grad()
    def _clipped(self, p: Tensor, g: Tensor, lr: Any) -> Tensor:
        refuse_captured_memory(self.clip)
        memory = self._memory.get(p) or self.clip.init(g)
        if shrinks_on_device(self.clip, g):
            clipped, self._memory[p] = shrink_on_device(g, self.clip, memory, Step(lr=lr))
            return clipped
        clipped, self._memory[p] = self.clip.update(g, memory, Step(lr=lr))
        return propagated(clipped, g)

    def __enter__(self) -> "Attached":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()
