"""Methods of the paper's comparisons as what they are: an optimizer with a clip at a stage.

spectra       AdamW, soft spectral clip of the update, threshold following the learning rate   (Jiang et al. 2026)
root          Muon, hard clip at q = .9 before the matrix sign                                 (He et al. 2025)
spectral_gd   the matrix sign of the gradient: Muon without momentum and scale                 (app:synthetic)
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from ..clip import Clip, hard
from ..matrix.clips import soft_spectral_clip
from ..thresholds import Fixed, FollowLR
from .methods.adamw import AdamW
from .methods.muon import Muon


def spectra(params: Iterable[Any], lr: float | Tensor = 1e-3, *, threshold: float = 10.0, **options: Any) -> AdamW:
    """SPECTRA as the paper runs it: AdamW whose update has its singular values softly clipped at a threshold.

    The threshold follows the learning rate from `threshold` at the one given here. `options` are AdamW's.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.zeros(4, 4))
    >>> spectra([w], lr=1e-3).param_groups[0]["post"]
    soft_spectral_clip(10 x lr/0.001)
    """
    return AdamW(params, lr, **{**options, "post": spectra_clip(lr, threshold)})


def spectra_clip(lr: float | Tensor, threshold: float = 10.0) -> Clip:
    """SPECTRA's clip of the update, at `threshold` for this learning rate and following it."""
    return Clip(soft_spectral_clip, FollowLR(Fixed(threshold), base_lr=lr.item() if isinstance(lr, Tensor) else lr))


def root(params: Iterable[Any], lr: float = 1e-3, *, q: float = 0.9, **options: Any) -> Muon:
    """ROOT: the momentum less its soft-thresholded part, which is hard clipping, before the matrix sign.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.zeros(4, 4))
    >>> root([w]).param_groups[0]["pre"]
    hard_clip(q=0.9)
    """
    return Muon(params, lr, **{**options, "pre": hard(q)})


def spectral_gd(params: Iterable[Any], lr: float = 1e-3, *, pre: Clip | None = None, sign: str = "exact") -> Muon:
    """The paper's spectral gradient descent, W <- W - lr msign(clip(G)): no momentum, no scale, no decay.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.zeros(4, 4))
    >>> w.grad = torch.eye(4)
    >>> spectral_gd([w], lr=1.0).step()
    >>> torch.allclose(w, -torch.eye(4))
    True
    """
    return Muon(params, lr, 0.0, momentum=0.0, nesterov=False, adjust_lr_fn="none", sign=sign, pre=pre)
