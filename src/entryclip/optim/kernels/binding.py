"""The tensors that a plan rests on. A kernel works on raw addresses, so everything about them is checked every step."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter, is_
from typing import cast

import torch
from torch import Tensor

from ...dtensor import PLAIN, local_shard, local_shards
from ...thresholds import State
from ..groups import HALF, Group, ParameterState

READABLE = (torch.float32, *HALF)  # the precisions of gradients that a backend which takes half precision reads


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


class HeldTensors:
    """What was seen of all tensors of a plan when it was made, to be compared with what they are at every step.

    All are asked one question, then the next: `map` over torch's own methods takes a fraction of the time of a loop,
    which a step of hundreds of parameters on a GPU would wait for.
    """

    def __init__(self, bindings: Sequence[ParameterBinding]) -> None:
        self._bindings = bindings
        self._halves = [each for each in bindings if each.half is not None]
        self._bound = [t for each in bindings for t in each.buffers.values()]
        self._memory = [t for each in bindings for t in each.memory.values()]
        tensors = [t for each in bindings for t in (each.w, *each.buffers.values())]
        self._tensors, self._addresses = tensors, [address for each in bindings for address in each.addresses]
        self._shapes = [t.shape for t in tensors]
        self.shapes = [each.w.shape for each in bindings]  # of the weights

    def hold(self, params: Sequence[Tensor], weights: Sequence[Tensor], states: Sequence[ParameterState]) -> bool:
        """Tell whether nothing was replaced, moved, reshaped or retyped since; of sharded tensors, local shards."""
        pairs = list(zip(self._bindings, states, strict=True))
        bound = local_shards([state.get(key) for each, state in pairs for key in each.buffers])
        memory = [state.get(key) for each, state in pairs for key in each.memory]
        return (
            all(map(is_, weights, [each.w for each in self._bindings]))
            and all(map(is_, bound, self._bound))
            and all(map(is_, memory, self._memory))
            and list(map(Tensor.data_ptr, self._tensors)) == self._addresses
            and are_plain(self._tensors, self._shapes)
            and (not self._halves or all(_is_half(each, p) for each, p in zip(self._bindings, params, strict=True)))
        )


def _is_half(binding: ParameterBinding, p: Tensor) -> bool:
    half = binding.half
    return half is None or (p is half and p.data_ptr() == binding.half_address and is_half_of(p, binding.w))


def are_plain(
    tensors: Sequence[Tensor], shapes: list[torch.Size], dtypes: tuple[torch.dtype, ...] = (torch.float32,)
) -> bool:
    """Tell whether all of these are plain, as `is_plain` says of one, and of these shapes."""
    return (
        set(map(type, tensors)) <= set(PLAIN)
        and set(map(attrgetter("dtype"), tensors)) <= set(dtypes)
        and set(map(attrgetter("layout"), tensors)) <= {torch.strided}
        and list(map(attrgetter("shape"), tensors)) == shapes
        and all(map(Tensor.is_contiguous, tensors))
        and not any(map(Tensor.is_neg, tensors))
    )


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
    return type(t) in PLAIN and t.dtype in dtypes and t.layout is torch.strided and t.is_contiguous() and not t.is_neg()


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
    if torch.compiler.is_compiling() or type(t) not in PLAIN:
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(t) and torch._C._len_torch_dispatch_stack() == 0


def take_gradients(params: Sequence[Tensor], shapes: list[torch.Size], group: Group) -> bool:
    """Tell of the gradients of several parameters what `takes_gradient` tells of one."""
    gradients = [p.grad for p in params]
    dtypes = READABLE if group["fp32_state"] else (torch.float32,)
    if set(map(type, params)) <= set(PLAIN) and are_plain(cast(list[Tensor], gradients), shapes, dtypes):
        return True
    return all(takes_gradient(p, group) for p in params)


def takes_gradient(p: Tensor, group: Group) -> bool:
    """Tell whether the gradient is of the kind that the kernel reads, or that `fp32_state` makes so."""
    g = p.grad
    assert g is not None
    if type(g) not in PLAIN or type(p) not in PLAIN:  # DTensors
        if getattr(g, "placements", None) != getattr(p, "placements", None):
            return False
        g = local_shard(g)
    if group["fp32_state"] and g.dtype in HALF:
        return is_plain(g, HALF)
    return is_plain(g)
