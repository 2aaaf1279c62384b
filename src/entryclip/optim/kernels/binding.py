"""The tensors that a plan rests on. A kernel works on raw addresses, so everything about them is checked every step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...thresholds import State
from ..groups import ParameterState

_PLAIN = (Tensor, torch.nn.Parameter)


@dataclass(frozen=True, eq=False)
class ParameterBinding:
    """The weights, buffers and rule memory of one parameter, and where they lay when the plan was made."""

    w: Tensor
    buffers: dict[str, Tensor]  # by their keys in the optimizer's state, in the method's order
    addresses: tuple[int, ...]  # of the weights, and of the buffers in their order
    memory: State  # by their keys in the state: views into the plan's arrays, which the optimizer's state holds too

    def holds(self, w: Tensor, state: ParameterState) -> bool:
        """Tell whether nothing was replaced, moved, reshaped or retyped since."""
        if w is not self.w or any(state.get(key) is not t for key, t in (*self.buffers.items(), *self.memory.items())):
            return False
        tensors = (w, *self.buffers.values())
        if tuple(t.data_ptr() for t in tensors) != self.addresses:
            return False
        return all(is_plain(t) and t.shape == w.shape and t.device == w.device for t in tensors)


def bind(w: Tensor, state: ParameterState, keys: Sequence[str], memory: State) -> ParameterBinding:
    """Return the binding of a parameter whose buffers `keys` exist."""
    buffers = {key: state[key] for key in keys}
    return ParameterBinding(w, buffers, tuple(t.data_ptr() for t in (w, *buffers.values())), memory)


def is_plain(t: Tensor) -> bool:
    """Tell whether `t` is an ordinary contiguous fp32 tensor, whose memory holds its entries as they are."""
    return (
        type(t) in _PLAIN
        and t.dtype is torch.float32
        and t.layout is torch.strided
        and t.is_contiguous()
        and not t.is_neg()
    )


def as_plain(g: Tensor, w: Tensor) -> Tensor:
    """Return a gradient as contiguous fp32, a copy only where it is not; its shape must be the weights'."""
    if g.shape != w.shape:
        raise ValueError(f"the grad clip gave a tensor of shape {tuple(g.shape)} for one of shape {tuple(w.shape)}")
    if is_plain(g) and g.device == w.device:
        return g
    return g.to(w.device, torch.float32).resolve_neg().contiguous()


def is_readable(t: Tensor) -> bool:
    """Tell whether a kernel may read the memory of `t` now: not in a subclass, under vmap, or while it is traced."""
    if torch.compiler.is_compiling() or type(t) not in _PLAIN:
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(t) and torch._C._len_torch_dispatch_stack() == 0
