"""AdamW, as torch.optim.AdamW, with clips."""

import warnings
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..clip import Clip, smooth
from .direction import Direction
from .groups import Group, check_torch_flags
from .kernels.fused import load
from .staged import Staged


class AdamW(Staged):
    """torch.optim.AdamW with entry-wise clipping of the update: the paper's post-clipping, by default `smooth(0.995)`.

    Smooth shrinkage takes the update's root mean square down to about 60 %, which acts like a smaller learning rate:
    retune it (the paper's best is 3 times larger) or pass `post=smooth(0.995, preserve_rms=True)` to keep the old one.
    (That keeps what a spike adds to the root mean square, too: it is for updates without one.)
    With `post=None` it takes torch's steps to the bit. Matrices are clipped; vectors and scalars only with
    `clip_vectors=True`.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.zeros(8, 8))
    >>> w.grad = torch.ones(8, 8)
    >>> optimizer = AdamW([w], lr=1e-2, weight_decay=0.0)
    >>> optimizer.step()
    >>> optimizer.param_groups[0]["post"], round(w.max().item(), 5)     # 1e-2 / e: all entries are equal
    (smooth_shrinkage(q=0.995), -0.00368)
    """

    name: ClassVar[str] = "adamw"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        grad: Clip | None = None,
        post: Clip | None = smooth(0.995),  # noqa: B008 - frozen
        nonfinite: str = "propagate",
        clip_vectors: bool = False,
        fp32_state: bool = False,
    ):
        check_torch_flags(capturable=capturable, differentiable=differentiable)
        own = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        common = {
            "maximize": maximize,
            "fused": bool(fused),
            "grad": grad,
            "post": post,
            "nonfinite": nonfinite,
            "clip_vectors": clip_vectors,
            "fp32_state": fp32_state,
        }
        super().__init__(params, {"method": self.name, **own, **common})

    @classmethod
    def options(cls) -> Group:
        own = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "amsgrad": False}
        return {**own, "post": smooth(0.995)}

    @staticmethod
    def check(group: Group) -> None:
        if not all(0 <= beta < 1 for beta in group["betas"]):
            raise ValueError(f"betas must be in [0, 1), got {group['betas']}")
        if not group["eps"] >= 0:
            raise ValueError(f"eps must be >= 0, got {group['eps']}")
        if group["fused"]:
            load()
            if any(p.device.type != "cpu" for p in group["params"]):
                warnings.warn("fused=True is for the CPU; on a device wrap the step in torch.compile", stacklevel=2)

    @staticmethod
    def buffers_(p: Tensor, state: dict[str, Any], group: Group) -> None:
        """Make the buffers that are not there yet."""
        if "exp_avg" not in state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        if group["amsgrad"] and "max_exp_avg_sq" not in state:
            state["max_exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)

    @staticmethod
    def update_(g: Tensor, p: Tensor, state: dict[str, Any], group: Group) -> None:
        AdamW.buffers_(p, state, group)
        beta1, beta2 = group["betas"]
        state["step"] += 1
        state["exp_avg"].lerp_(g, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(g, g, value=1 - beta2)
        if group["amsgrad"]:
            torch.maximum(state["max_exp_avg_sq"], state["exp_avg_sq"], out=state["max_exp_avg_sq"])

    @classmethod
    def fused_step(cls, optimizer: Staged, params: list[Tensor], group: Group) -> list[Tensor]:
        for p in params:
            cls.buffers_(p, optimizer.state[p], group)
        return optimizer.fast.step_(optimizer, params, group)

    @staticmethod
    def ready(g: Tensor | None, state: dict[str, Any], group: Group) -> bool:
        return "exp_avg" in state

    @staticmethod
    def direction(g: Tensor, p: Tensor, state: dict[str, Any], group: Group) -> Direction:
        (beta1, beta2), step = group["betas"], state["step"]
        if not torch.compiler.is_compiling():
            step = step.item()  # on the host always, as torch keeps it: nothing waits
        second = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
        denominator = second.sqrt().div_((1 - beta2**step) ** 0.5).add_(group["eps"])
        return Direction(state["exp_avg"], denominator, divisor=1 - beta1**step)
