"""The tensors that a plan rests on. A kernel works on raw addresses, so everything about them is checked every step."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...dtensor import local_shard
from ...thresholds import State
from ..groups import ParameterState

_PLAIN = (Tensor, torch.nn.Parameter)


@dataclass(frozen=True, eq=False)
class ParameterBinding:
    """The weights, moments and rule memory of one parameter, and where they lay when the plan was made."""

    w: Tensor
    m: Tensor
    v: Tensor
    addresses: tuple[int, int, int]
    memory: State  # views into the plan's arrays, which the optimizer's state holds too

    def holds(self, w: Tensor, state: ParameterState) -> bool:
        """Tell whether nothing was replaced, moved, reshaped or retyped since."""
        m, v = self.m, self.v
        if (
            w is not self.w
            or local_shard(state.get("exp_avg")) is not m
            or local_shard(state.get("exp_avg_sq")) is not v
        ):
            return False
        if (w.data_ptr(), m.data_ptr(), v.data_ptr()) != self.addresses:
            return False
        if not (is_plain(w) and is_plain(m) and is_plain(v) and w.shape == m.shape == v.shape):
            return False
        if not w.device == m.device == v.device:
            return False
        return all(state.get(f"post_{key}") is value for key, value in self.memory.items())


def bind(w: Tensor, state: ParameterState, memory: State) -> ParameterBinding:
    """Return the binding of a parameter whose moments exist; `w` is the local shard of a sharded one."""
    m, v = local_shard(state["exp_avg"]), local_shard(state["exp_avg_sq"])
    return ParameterBinding(w, m, v, (w.data_ptr(), m.data_ptr(), v.data_ptr()), memory)


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
