"""The tensors that a plan rests on. A kernel works on raw addresses, so everything about them is checked every step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...dtensor import local_shard
from ...thresholds import State
from ..groups import HALF, Group, ParameterState

READABLE = (torch.float32, *HALF)  # the precisions of gradients that a backend which takes half precision reads
_PLAIN = (Tensor, torch.nn.Parameter)


@dataclass(frozen=True, eq=False)
class ParameterBinding:
    """The weights, buffers and rule memory of one parameter, and where they lay when the plan was made.

    `half` is the parameter itself where that is in half precision and the weights are its fp32 copy.
    """

    w: Tensor
    buffers: dict[str, Tensor]  # by their keys in the optimizer's state, in the method's order
    addresses: tuple[int, ...]  # of the weights, and of the buffers in their order
    memory: State  # by their keys in the state: views into the plan's arrays, which the optimizer's state holds too
    half: Tensor | None = None
    half_address: int = 0

    def holds(self, p: Tensor, w: Tensor, state: ParameterState) -> bool:
        """Tell whether nothing was replaced, moved, reshaped or retyped since."""
        if w is not self.w or any(state.get(key) is not t for key, t in self.memory.items()):
            return False
        if any(local_shard(state.get(key)) is not t for key, t in self.buffers.items()):
            return False
        tensors = (w, *self.buffers.values())
        if tuple(t.data_ptr() for t in tensors) != self.addresses:
            return False
        if self.half is not None and not (p is self.half and p.data_ptr() == self.half_address and is_half_of(p, w)):
            return False
        return all(is_plain(t) and t.shape == w.shape and t.device == w.device for t in tensors)


def bind(p: Tensor, w: Tensor, state: ParameterState, keys: Sequence[str], memory: State) -> ParameterBinding:
    """Return the binding of a parameter `p` whose buffers `keys` exist; its weights `w` are `p` or its fp32 copy.

    Of a sharded parameter both are the local shards.
    """
    buffers = {key: local_shard(state[key]) for key in keys}
    addresses = tuple(t.data_ptr() for t in (w, *buffers.values()))
    return ParameterBinding(w, buffers, addresses, memory, None if p is w else p, p.data_ptr())


def is_half_of(p: Tensor, w: Tensor) -> bool:
    """Tell whether a kernel can write `p` as the half-precision version of the plain weights `w`."""
    return is_plain(p, HALF) and p.shape == w.shape and p.device == w.device


def is_plain(t: Tensor, dtypes: tuple[torch.dtype, ...] = (torch.float32,)) -> bool:
    """Tell whether `t` is an ordinary contiguous tensor of these dtypes, whose memory holds its entries as they are."""
    return (
        type(t) in _PLAIN and t.dtype in dtypes and t.layout is torch.strided and t.is_contiguous() and not t.is_neg()
    )


def as_plain(g: Tensor, w: Tensor, takes_half: bool) -> Tensor:
    """Return a gradient as contiguous fp32, or half where that is taken; a copy only where it is not.

    Its shape must be the weights'.
    """
    if g.shape != w.shape:
        raise ValueError(f"the grad clip gave a tensor of shape {tuple(g.shape)} for one of shape {tuple(w.shape)}")
    if is_plain(g, READABLE if takes_half else (torch.float32,)) and g.device == w.device:
        return g
    return g.to(w.device, torch.float32).resolve_neg().contiguous()


def is_readable(t: Tensor) -> bool:
    """Tell whether a kernel may read the memory of `t` now: not in a subclass, under vmap, or while it is traced."""
    if torch.compiler.is_compiling() or type(t) not in _PLAIN:
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(t) and torch._C._len_torch_dispatch_stack() == 0


def takes_gradient(p: Tensor, group: Group) -> bool:
    """Tell whether the gradient is of the kind that the kernel reads, or that `fp32_state` makes so."""
    g = p.grad
    assert g is not None
    if getattr(g, "placements", None) != getattr(p, "placements", None):  # of DTensors
        return False
    g = local_shard(g)
    if group["fp32_state"] and g.dtype in HALF:
        return is_plain(g, HALF)
    return is_plain(g)
