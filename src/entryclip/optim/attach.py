"""Clip the gradients that any torch optimizer sees.

The optimizer's class becomes a subclass of its own whose step sees clipped gradients. In that way the clip and what its
rule remembers go wherever the optimizer goes, into copies, pickles and state dicts, and nothing refers to itself.
"""

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..clip import Clip
from ..thresholds import State, Step
from .capture import refuse_captured_memory
from .device_shrinkage import shrink_on_device, shrinks_on_device
from .finite import propagated
from .flattened import refuse_flat_pieces
from .groups import with_scalar_lr
from .stages import refuse_sparse

_KEY = "_entryclip"  # the attribute of an optimizer that holds its clip
_PREFIX = "entryclip_"  # of the memory of a parameter's rule in a state dict


def attach(optimizer: Optimizer, *, grad: Clip, clip_vectors: bool = False) -> "Attached":
    """Make `optimizer` step with clipped gradients from now on; return the handle that undoes it.

    The `.grad` of the parameters are the same after a step as before it. Parameters with fewer than two dimensions are
    not clipped unless `clip_vectors` is set. A closure may be passed to the step: the gradients that it makes are
    clipped each time it is called. Copies of the optimizer clip, too, and a state dict holds what the clip's rule
    remembers, for an optimizer with the same clip attached. Under a GradScaler the clip sees unscaled gradients, and an
    overflow still makes the scaler skip the step. An optimizer that unscales inside its own fused step is refused.

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
    if isinstance(optimizer, _Clipped):
        raise ValueError("a clip is attached to this optimizer already: undo it first")
    refuse_flat_pieces(_parameters(optimizer), clip_vectors)
    optimizer.__class__ = _clipped_class(type(optimizer))
    setattr(optimizer, _KEY, _Attachment(grad, clip_vectors))
    if (own := vars(optimizer).get("step")) is not None:  # where a scheduler has replaced it
        optimizer.step = _around(weakref.ref(optimizer), own)  # type: ignore[method-assign]
    return Attached(optimizer)


class Attached:
    """The handle of a clip before an optimizer's step, which stays until `undo()` or to the end of a `with` block."""

    def __init__(self, optimizer: Optimizer):
        self.optimizer = optimizer
        self._attachment: _Attachment = getattr(optimizer, _KEY)

    @property
    def clip(self) -> Clip:
        """The clip of the gradients."""
        return self._attachment.clip

    @property
    def steps(self) -> int:
        """The number of steps since the clip was attached."""
        return self._attachment.steps

    def undo(self) -> None:
        """Restore the optimizer's own step."""
        if vars(self.optimizer).pop(_KEY, None) is None:
            return
        self.optimizer.__class__ = type(self.optimizer).__mro__[2]
        own = getattr(vars(self.optimizer).get("step"), "_entryclip_around", None)
        if own is not None:
            self.optimizer.step = own  # type: ignore[method-assign]

    def __enter__(self) -> "Attached":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


@dataclass
class _Attachment:
    """A clip and what its rule remembers of each parameter."""

    clip: Clip
    clip_vectors: bool
    steps: int = 0
    memory: dict[Tensor, State] = field(default_factory=dict)

    def step(self, optimizer: Optimizer, step: Callable[..., Any], closure: Callable[[], Any] | None) -> Any:
        """Call `step` with clipped gradients in place of the real ones, which are there again afterwards."""
        if getattr(optimizer, "grad_scale", None) is not None:
            raise ValueError("this fused optimizer unscales inside its step: call scaler.unscale_(optimizer) before it")
        self.steps += 1
        real = _gradients(optimizer)

        def clipped_closure() -> Any:  # it may add to the gradients, and is called several times by some optimizers
            _restore(real)
            assert closure is not None
            loss = closure()
            real[:] = _gradients(optimizer)
            self._clip_gradients(optimizer)
            return loss

        try:
            if closure is not None:
                return step(clipped_closure)
            self._clip_gradients(optimizer)
            return step()
        finally:
            _restore(real)

    @torch.no_grad()
    def _clip_gradients(self, optimizer: Optimizer) -> None:
        """Replace the gradient of every parameter that is to be clipped."""
        for group in map(with_scalar_lr, optimizer.param_groups):
            for p in group["params"]:
                if p.grad is not None and (p.ndim >= 2 or self.clip_vectors):
                    refuse_sparse(p.grad, {"method": "attach"})
                    p.grad = self._clipped(p, p.grad, group["lr"])

    def _clipped(self, p: Tensor, g: Tensor, lr: Any) -> Tensor:
        refuse_captured_memory(self.clip)
        memory = self.memory.get(p) or self.clip.init(g)
        if shrinks_on_device(self.clip, g):
            clipped, memory = shrink_on_device(g, self.clip, memory, Step(lr=lr))
        else:
            clipped, memory = self.clip.update(g, memory, Step(lr=lr))
            clipped = propagated(clipped, g)
        if memory:
            self.memory[p] = memory
        return clipped


def _gradients(optimizer: Optimizer) -> list[tuple[Tensor, Tensor]]:
    """Return the parameters that have a gradient, with it."""
    return [(p, p.grad) for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def _restore(real: list[tuple[Tensor, Tensor]]) -> None:
    for p, g in real:
        p.grad = g


class _Clipped(Optimizer):
    """What the class of an optimizer with an attached clip has before its own methods."""

    def step(self, closure: Any = None) -> Any:
        """Run the optimizer's step with clipped gradients in place of the real ones."""
        attachment = vars(self).get(_KEY)
        if attachment is None:  # undone, while a scheduler still calls this function
            return type(self).step(self, closure)
        return attachment.step(self, super().step, closure)

    vars(step)["hooked"] = True  # torch's hooks are called by the step inside

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state dict, in which the state of a parameter holds the memory of the clip, too."""
        saved, memory = super().state_dict(), getattr(self, _KEY).memory
        places = (place for group in saved["param_groups"] for place in group["params"])
        for p, place in zip(_parameters(self), places, strict=True):
            if p in memory:
                kept = {f"{_PREFIX}{key}": value for key, value in memory[p].items()}
                saved["state"][place] = {**saved["state"].get(place, {}), **kept}
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load as the optimizer does; the memory of the clip in its own precision, where torch casts a state."""
        final: list[dict[str, Any]] = []

        def before(_: Optimizer, given: dict[str, Any]) -> dict[str, Any]:
            final.append(given)
            bare = {
                place: {key: value for key, value in state.items() if not str(key).startswith(_PREFIX)}
                for place, state in given["state"].items()
            }
            return {**given, "state": {place: state for place, state in bare.items() if state}}

        handle = self.register_load_state_dict_pre_hook(before)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        places = (place for group in final[0]["param_groups"] for place in group["params"])
        states = ((p, final[0]["state"].get(place, {})) for p, place in zip(_parameters(self), places, strict=True))
        getattr(self, _KEY).memory = {p: kept for p, state in states if (kept := _memory(state, p.device))}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), _KEY: getattr(self, _KEY)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = type(self)
        self.__class__ = own.__mro__[2]  # torch prepares the step of the class that it finds
        self.__setstate__(state)
        self.__class__ = own

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _blank, (type(self).__mro__[2],), self.__getstate__()


_CLASSES: dict[type[Optimizer], type[Optimizer]] = {}


def _clipped_class(own: type[Optimizer]) -> type[Optimizer]:
    """Return the subclass of an optimizer's class that an attached clip gives it, always the same; it has its name."""
    if own not in _CLASSES:
        members = {"__module__": own.__module__, "__doc__": own.__doc__}
        _CLASSES[own] = type(own.__name__, (_Clipped, own), members)
    return _CLASSES[own]


def _blank(own: type[Optimizer]) -> Optimizer:
    """Return an optimizer with an attached clip before its state is set, for copies and pickles."""
    return object.__new__(_clipped_class(own))


def _around(optimizer: "weakref.ref[Optimizer]", own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step around the one that a scheduler had put on the optimizer, with the marks that it looks for."""

    @functools.wraps(own)
    def step(closure: Any = None) -> Any:
        alive = optimizer()
        assert alive is not None
        attachment = vars(alive).get(_KEY)
        return own(closure) if attachment is None else attachment.step(alive, own, closure)

    vars(step)["_entryclip_around"] = own
    return step


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _memory(state: dict[Any, Any], device: torch.device) -> State:
    """Return the memory of the clip out of the saved state of a parameter."""
    found = {str(key): value for key, value in state.items() if str(key).startswith(_PREFIX)}
    return {key.removeprefix(_PREFIX): value.detach().clone().to(device) for key, value in found.items()}
