"""Stochastic gradient descent with momentum, as torch.optim.SGD, with clips."""

import warnings
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...arrays import is_number
from ...clip import Clip
from ..direction import Direction
from ..foreach import batchable
from ..groups import Group, ParameterState, check_number, check_torch_flags
from ..kernels.backends import load_backends
from ..kernels.momentum import FusedSGD
from ..staged import Staged
from .method import Method, chosen, defaults_of, register


class SGDMethod(Method):
    """Momentum m <- momentum m + (1 - dampening) g, direction m, or g + momentum m with `nesterov`."""

    name: ClassVar[str] = "sgd"
    buffers: ClassVar[tuple[str, ...]] = ("momentum_buffer",)
    kernel = FusedSGD

    def options(self) -> Group:
        return defaults_of(SGD.__init__)

    def check(self, group: Group) -> None:
        check_number("momentum", group["momentum"])
        if not is_number(group["dampening"]):
            raise TypeError(f"dampening must be a number, got {group['dampening']!r}")
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("nesterov needs a momentum above 0 and no dampening")
        if group["fused"]:
            load_backends(group["params"])
            if any(p.is_cpu for p in group["params"]):
                warnings.warn("fused=True has no kernel for SGD on a CPU: the plain step is taken there", stacklevel=4)

    def update_(self, g: Tensor, w: Tensor, state: ParameterState, group: Group) -> None:
        if group["momentum"] == 0:
            return
        g = _with_decay(g, w, group)
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = g.detach().clone()
        else:
            state["momentum_buffer"].mul_(group["momentum"]).add_(g, alpha=1 - group["dampening"])

    def update_all_(self, gs: list[Tensor], ws: list[Tensor], states: list[ParameterState], group: Group) -> None:
        buffers = [state["momentum_buffer"] for state in states if state.get("momentum_buffer") is not None]
        if group["momentum"] == 0 or len(buffers) < len(gs) or not batchable(gs):
            super().update_all_(gs, ws, states, group)  # the first step copies the gradient
            return
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, _all_with_decay(gs, ws, group), alpha=1 - group["dampening"])

    def direction(self, g: Tensor | None, w: Tensor, state: ParameterState, group: Group) -> Direction:
        if group["momentum"] != 0 and not group["nesterov"]:
            return Direction(state["momentum_buffer"])
        assert g is not None
        if group["momentum"] == 0:
            return Direction(_with_decay(g, w, group))
        return Direction(_with_decay(g, w, group).add(state["momentum_buffer"], alpha=group["momentum"]))

    def directions(
        self, gs: list[Tensor], ws: list[Tensor], states: list[ParameterState], group: Group
    ) -> list[Direction]:
        if not batchable(gs) or (group["momentum"] != 0 and not group["nesterov"]):
            return super().directions(gs, ws, states, group)
        decayed = _all_with_decay(gs, ws, group)
        if group["momentum"] == 0:
            return [Direction(d) for d in decayed]
        buffers = [state["momentum_buffer"] for state in states]
        return [Direction(u) for u in torch._foreach_add(decayed, buffers, alpha=group["momentum"])]

    def can_direct(self, g: Tensor | None, state: ParameterState, group: Group) -> bool:
        return g is not None if group["momentum"] == 0 else super().can_direct(g, state, group)

    def decays(self, group: Group) -> bool:
        return _is_clipped(group) and super().decays(group)


def _with_decay(g: Tensor, w: Tensor, group: Group) -> Tensor:
    """Return the gradient with torch's coupled weight decay, unless a clip would see the decay."""
    return g if group["weight_decay"] == 0 or _is_clipped(group) else g.add(w, alpha=group["weight_decay"])


def _all_with_decay(gs: list[Tensor], ws: list[Tensor], group: Group) -> list[Tensor]:
    """Do `_with_decay` for each parameter of a batch."""
    if group["weight_decay"] == 0 or _is_clipped(group):
        return gs
    return list(torch._foreach_add(gs, ws, alpha=group["weight_decay"]))


def _is_clipped(group: Group) -> bool:
    return group["grad"] is not None or group["post"] is not None


class SGD(Staged):
    """torch.optim.SGD with entry-wise clipping: without clips it takes the same steps to the bit.

    `grad` clips the gradient before momentum, `post` the direction. Weight decay is not clipped: with a clip at either
    stage it acts on the weights directly (decoupled), which without momentum is the same.

    >>> import torch
    >>> import entryclip as ec
    >>> w = torch.nn.Parameter(torch.zeros(2, 2))
    >>> w.grad = torch.tensor([[1.0, 2.0], [3.0, 1000.0]])
    >>> SGD([w], lr=1.0, post=ec.Clip(ec.hard_clip, ec.Fixed(3.0))).step()
    >>> w.data
    tensor([[-1., -2.],
            [-3., -3.]])
    """

    method: ClassVar[Method] = register(SGDMethod())

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        grad: Clip | None = None,
        post: Clip | None = None,
        nonfinite: str = "propagate",
        clip_vectors: bool = False,
        fp32_state: bool = False,
    ):
        check_torch_flags(differentiable=differentiable)
        super().__init__(params, chosen(defaults_of(SGD.__init__), locals()))
