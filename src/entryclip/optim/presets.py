"""Methods of the paper and its neighbours, spelled as what they are: an optimizer with a clip at a stage.

spectra       AdamW, soft spectral clip of the update, threshold following the learning rate   (Jiang et al. 2026)
root          Muon, hard clip at q = .9 before the matrix sign                                 (He et al. 2025)
spectral_gd   the matrix sign of the gradient: Muon without momentum and scale                 (app:synthetic)
AdaMuon       the matrix sign of the momentum's signs, divided by its own second moment        (Si et al. 2025)
"""

import math
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..clip import Clip, hard
from ..matrix.clips import soft_spectral_clip
from ..thresholds import Fixed, FollowLR
from .adamw import AdamW
from .direction import propagated
from .groups import Group, layout_of
from .muon import Muon
from .staged import Staged


def spectra(params: Iterable[Any], lr: float = 1e-3, *, threshold: float = 10.0, **options: Any) -> AdamW:
    """SPECTRA as the paper runs it: AdamW whose update has its singular values softly clipped at a threshold.

    The threshold follows the learning rate from `threshold` at the one given here. `options` are AdamW's.

    >>> w = torch.nn.Parameter(torch.zeros(4, 4))
    >>> spectra([w], lr=1e-3).param_groups[0]["post"]
    soft_spectral_clip(10 x lr/0.001)
    """
    return AdamW(params, lr, **{**options, "post": spectra_clip(lr, threshold)})


def spectra_clip(lr: float, threshold: float = 10.0) -> Clip:
    """SPECTRA's clip of the update, at `threshold` for this learning rate and following it."""
    return Clip(soft_spectral_clip, FollowLR(Fixed(threshold), base_lr=lr))


def root(params: Iterable[Any], lr: float = 1e-3, *, q: float = 0.9, **options: Any) -> Muon:
    """ROOT: the momentum less its soft-thresholded part, which is hard clipping, before the matrix sign.

    >>> w = torch.nn.Parameter(torch.zeros(4, 4))
    >>> root([w]).param_groups[0]["pre"]
    hard_clip(q=0.9)
    """
    return Muon(params, lr, **{**options, "pre": hard(q)})


def spectral_gd(params: Iterable[Any], lr: float = 1e-3, *, pre: Clip | None = None, method: str = "exact") -> Muon:
    """The paper's spectral gradient descent, W <- W - lr msign(clip(G)): no momentum, no scale, no decay.

    >>> w = torch.nn.Parameter(torch.zeros(4, 4))
    >>> w.grad = torch.eye(4)
    >>> spectral_gd([w], lr=1.0).step()
    >>> torch.allclose(w, -torch.eye(4))
    True
    """
    return Muon(params, lr, 0.0, momentum=0.0, nesterov=False, adjust_lr_fn="none", method=method, pre=pre)


class AdaMuon(Muon):
    """AdaMuon: O = msign(sign(momentum)), divided by the root of its own second moment, scaled to root mean square 0.2.

    >>> w = torch.nn.Parameter(torch.zeros(4, 4))
    >>> w.grad = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    >>> AdaMuon([w], lr=1.0, weight_decay=0.0).step()
    >>> round(float(w.detach().square().mean().sqrt()), 3)
    0.2
    """

    name: ClassVar[str] = "adamuon"

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
    ):
        own = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov}
        Staged.__init__(self, params, {**self.options(), **own, "beta2": beta2, "eps": eps, "grad": grad, "post": post})

    @classmethod
    def options(cls) -> Group:
        own = {"method": cls.name, "beta2": 0.95, "eps": 1e-8, "adjust_lr_fn": "none", "pre": None}
        return {**Muon.options(), **own}

    @staticmethod
    def check(group: Group) -> None:
        Muon.check(group)
        if not 0 <= group["beta2"] < 1 or not group["eps"] >= 0:
            raise ValueError(f"beta2 must be in [0, 1) and eps >= 0, got {group['beta2']} and {group['eps']}")

    @staticmethod
    def sign(m: Tensor, group: Group) -> Tensor:
        return Muon.sign(propagated(torch.sign(m), m), group)  # torch.sign makes NaN 0 and inf 1

    @staticmethod
    def after_sign(o: Tensor, p: Tensor, state: dict[str, Any], group: Group) -> Tensor:
        if "exp_avg_sq" not in state:
            state["exp_avg_sq"] = torch.zeros_like(o)
        state["exp_avg_sq"].mul_(group["beta2"]).addcmul_(o, o, value=1 - group["beta2"])
        u = layout_of(group).matrices(o / state["exp_avg_sq"].sqrt().add_(group["eps"]))
        size = torch.linalg.matrix_norm(u, keepdim=True)
        rms = 0.2 * math.sqrt(math.prod(u.shape[-2:]))
        return layout_of(group).restore(u * (rms / torch.where(size == 0, 1.0, size)), o.shape)
