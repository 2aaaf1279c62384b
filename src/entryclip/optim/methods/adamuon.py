"""AdaMuon: the matrix sign of the momentum's signs, divided by its own second moment (Si et al. 2025)."""

import math
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...clip import Clip
from ..finite import propagated
from ..groups import Group, ParameterState, check_number, layout_of
from ..kernels.plan import FusedStep
from ..staged import Staged
from .method import Method, chosen, defaults_of, register
from .muon import MuonMethod


class AdaMuonMethod(MuonMethod):
    """Muon's momentum m, then O = msign(sign(m)), direction O / sqrt(v) with v the second moment of O."""

    name: ClassVar[str] = "adamuon"
    buffers: ClassVar[tuple[str, ...]] = ("momentum_buffer", "exp_avg_sq")
    kernel: ClassVar[type[FusedStep] | None] = None  # Muon's does not know the second moment

    def options(self) -> Group:
        return {**super().options(), "adjust_lr_fn": "none", "pre": None, **defaults_of(AdaMuon.__init__)}

    def check(self, group: Group) -> None:
        super().check(group)
        check_number("beta2", group["beta2"], below=1)

    def sign(self, m: Tensor, group: Group) -> Tensor:
        return super().sign(propagated(torch.sign(m), m), group)  # torch.sign makes NaN 0 and inf 1

    def update_after_sign_(self, o: Tensor, state: ParameterState, group: Group) -> None:
        if "exp_avg_sq" not in state:
            state["exp_avg_sq"] = torch.zeros_like(o)
        state["exp_avg_sq"].mul_(group["beta2"]).addcmul_(o, o, value=1 - group["beta2"])

    def from_sign(self, o: Tensor, state: ParameterState, group: Group) -> Tensor:
        layout = layout_of(group)
        u = layout.matrices(o / state["exp_avg_sq"].sqrt().add_(group["eps"]))
        return layout.restore(sized_as_adamw(u), o.shape)


def sized_as_adamw(u: Tensor) -> Tensor:
    """Return matrices (..., m, n) scaled to root mean square 0.2, which AdamW's updates have; zeros stay zeros."""
    size = torch.linalg.matrix_norm(u, keepdim=True)
    return u * (0.2 * math.sqrt(math.prod(u.shape[-2:])) / torch.where(size == 0, 1.0, size))


class AdaMuon(Staged):
    """AdaMuon: O = msign(sign(momentum)), divided by the root of its own second moment, scaled to root mean square 0.2.

    >>> w = torch.nn.Parameter(torch.zeros(4, 4))
    >>> w.grad = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    >>> AdaMuon([w], lr=1.0, weight_decay=0.0).step()
    >>> round(float(w.detach().square().mean().sqrt()), 3)
    0.2
    """

    method: ClassVar[Method] = register(AdaMuonMethod())

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        *,
        beta2: float = 0.95,
        eps: float = 1e-8,
        grad: Clip | None = None,
        post: Clip | None = None,
        capturable: bool = False,
    ):
        super().__init__(params, chosen(defaults_of(AdaMuon.__init__), locals()))
