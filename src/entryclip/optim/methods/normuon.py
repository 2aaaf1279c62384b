"""NorMuon: Muon whose update has its rows divided by their running root mean squares.

Li, Liu, Liang, Chen and Zhao, "NorMuon: Making Muon more efficient and scalable" (arXiv:2510.05491).
"""

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...clip import Clip
from ..groups import Group, ParameterState, check_number, layout_of
from ..kernels.plan import FusedStep
from ..staged import Staged
from .adamuon import sized_as_adamw
from .method import Method, chosen, defaults_of, register
from .muon import MuonMethod

_EPS = 1e-10  # added to the root mean square of a row, as in the authors' program


class NorMuonMethod(MuonMethod):
    """Muon's O = msign(momentum), row means v of O^2 averaged over steps, update O / sqrt(v) scaled to a fixed size."""

    name: ClassVar[str] = "normuon"
    kernel: ClassVar[type[FusedStep] | None] = None  # Muon's does not know the second moment

    def options(self) -> Group:
        return {**super().options(), "adjust_lr_fn": "none", "pre": None, **defaults_of(NorMuon.__init__)}

    def check(self, group: Group) -> None:
        super().check(group)
        check_number("beta2", group["beta2"], below=1)

    def scale(self, w: Tensor, group: Group) -> float:
        return 1.0  # whatever `adjust_lr_fn` a checkpoint of Muon brings along

    def update_after_sign_(self, o: Tensor, state: ParameterState, group: Group) -> None:
        squares = layout_of(group).matrices(o).square().mean(-1, keepdim=True)
        if "row_exp_avg_sq" not in state:
            state["row_exp_avg_sq"] = torch.zeros_like(squares)
        state["row_exp_avg_sq"].lerp_(squares, 1 - group["beta2"])

    def from_sign(self, o: Tensor, state: ParameterState, group: Group) -> Tensor:
        layout = layout_of(group)
        u = layout.matrices(o) / state["row_exp_avg_sq"].sqrt().add_(_EPS)
        return layout.restore(sized_as_adamw(u), o.shape)


class NorMuon(Staged):
    """NorMuon: each row of O = msign(momentum) divided by its running root mean square, scaled to root mean square 0.2.

    That is the size of Muon's update with `adjust_lr_fn="match_rms_adamw"`, so that a learning rate carries over. The
    second moment takes one number per row. The paper's algorithm has no Nesterov momentum and the authors' program has;
    `nesterov=False` is the former.

    >>> w = torch.nn.Parameter(torch.zeros(4, 4))
    >>> w.grad = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    >>> NorMuon([w], lr=1.0, weight_decay=0.0).step()
    >>> w.detach().square().mean(1).sqrt()
    tensor([0.2000, 0.2000, 0.2000, 0.2000])
    """

    method: ClassVar[Method] = register(NorMuonMethod())

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        *,
        beta2: float = 0.95,
        sign: str = "newton_schulz",
        maximize: bool = False,
        grad: Clip | None = None,
        pre: Clip | None = None,
        post: Clip | None = None,
        nonfinite: str = "propagate",
        fp32_state: bool = False,
        capturable: bool = False,
    ):
        super().__init__(params, chosen(defaults_of(NorMuon.__init__), locals()))
