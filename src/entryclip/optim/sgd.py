"""Stochastic gradient descent with momentum, as torch.optim.SGD, with clips."""

from collections.abc import Iterable
from typing import Any, ClassVar

from torch import Tensor

from ..clip import Clip
from .direction import Direction
from .groups import Group, check_torch_flags
from .staged import Staged


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

    name: ClassVar[str] = "sgd"

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
        differentiable: bool = False,
        fused: bool | None = None,
        grad: Clip | None = None,
        post: Clip | None = None,
        nonfinite: str = "propagate",
        clip_vectors: bool = False,
        fp32_state: bool = False,
    ):
        check_torch_flags(differentiable=differentiable, fused=fused)
        own = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        common = {
            "maximize": maximize,
            "grad": grad,
            "post": post,
            "nonfinite": nonfinite,
            "clip_vectors": clip_vectors,
            "fp32_state": fp32_state,
        }
        super().__init__(params, {"method": self.name, **own, **common})

    @classmethod
    def options(cls) -> Group:
        return {"lr": 1e-3, "momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False}

    @staticmethod
    def check(group: Group) -> None:
        if group["momentum"] < 0:
            raise ValueError(f"momentum must be >= 0, got {group['momentum']}")
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("nesterov needs a momentum above 0 and no dampening")

    @staticmethod
    def update_(g: Tensor, p: Tensor, state: dict[str, Any], group: Group) -> None:
        if group["momentum"] == 0:
            return
        g = _with_decay(g, p, group)
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = g.detach().clone()
        else:
            state["momentum_buffer"].mul_(group["momentum"]).add_(g, alpha=1 - group["dampening"])

    @staticmethod
    def direction(g: Tensor, p: Tensor, state: dict[str, Any], group: Group) -> Direction:
        if group["momentum"] == 0:
            return Direction(_with_decay(g, p, group))
        if group["nesterov"]:
            return Direction(_with_decay(g, p, group).add(state["momentum_buffer"], alpha=group["momentum"]))
        return Direction(state["momentum_buffer"])

    @staticmethod
    def ready(g: Tensor | None, state: dict[str, Any], group: Group) -> bool:
        return g is not None if group["momentum"] == 0 else Staged.ready(g, state, group)

    @staticmethod
    def decay_(p: Tensor, group: Group) -> None:
        if _is_clipped(group):
            Staged.decay_(p, group)


def _with_decay(g: Tensor, p: Tensor, group: Group) -> Tensor:
    """torch's coupled decay, where no clip would see it."""
    return g if group["weight_decay"] == 0 or _is_clipped(group) else g.add(p, alpha=group["weight_decay"])


def _is_clipped(group: Group) -> bool:
    return group["grad"] is not None or group["post"] is not None
