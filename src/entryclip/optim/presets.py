"""Published methods as what they are here: an optimizer with a clip at a stage, or a method of its own.

of the paper's comparisons
    spectra             AdamW, soft spectral clip of the update, threshold following the learning rate
    root                Muon, hard clip at q = .9 before the matrix sign
    spectral_gd         the matrix sign of the gradient: Muon without momentum and scale
against spikes
    adagc               AdamW, each gradient's norm against the running mean of its own
    zclip               AdamW, the norm of all gradients against its running mean and deviation
    spectral_clipping   AdamW, each gradient's singular values against the running mean of the largest
    StableAdamW         AdamW, the step divided by the root mean square of g / sqrt(v)
    SPAM, StableSPAM    AdamW, spikes of the gradient cut by its history, moments reset
after the matrix sign
    NorMuon             Muon, rows of the update divided by their running size

Each names its paper, and a test holds it to the published formula.
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from ..clip import Clip, hard
from ..matrix.clips import soft_spectral_clip, spectral_clip
from ..norm_thresholds import RunningNorm, RunningSpectralNorm
from ..operators import global_clip
from ..thresholds import Fixed, FollowLR
from .methods.adamw import AdamW
from .methods.muon import Muon
from .methods.normuon import NorMuon
from .methods.spam import SPAM, StableSPAM
from .methods.stable_adamw import StableAdamW
from .norm_rules import MaxNorm, NormRule, ZScore

__all__ = [
    "SPAM",
    "NorMuon",
    "StableAdamW",
    "StableSPAM",
    "adagc",
    "root",
    "spectra",
    "spectral_clipping",
    "spectral_gd",
    "zclip",
]


def spectra(params: Iterable[Any], lr: float | Tensor = 1e-3, *, threshold: float = 10.0, **options: Any) -> AdamW:
    """SPECTRA as the paper runs it: AdamW whose update has its singular values softly clipped at a threshold.

    Jiang, Semenov and Stich, "Enhancing LLM Training via Spectral Clipping" (arXiv:2603.14315).
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


def adagc(
    params: Iterable[Any],
    lr: float | Tensor = 1e-3,
    *,
    relative: float = 1.04,
    beta: float = 0.99,
    warmup: int = 100,
    absolute: float = 1.0,
    **options: Any,
) -> AdamW:
    """AdaGC: AdamW with each gradient's norm at most `relative` times the running mean of its own clipped norms.

    In the first `warmup` steps the norm of all gradients together is at most `absolute`, and the running mean begins
    at the smallest norm seen in them. Wang et al., "AdaGC: Improving Training Stability for Large Language Model
    Pretraining" (arXiv:2502.11034); `relative` and `beta` are those of the authors' GPT-2 runs. Vectors are clipped,
    too. `options` are AdamW's; a `grad` among them takes the place of this clip.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.zeros(4, 4))
    >>> adagc([w]).param_groups[0]["grad"]
    global_clip(1.04 x running norm, beta=0.99, warmup=100)
    """
    clip = Clip(global_clip, RunningNorm(relative, beta, warmup))
    made = AdamW(params, lr, **{"post": None, "grad": clip, "clip_vectors": True, **options})
    return _with_norm_rule(made, MaxNorm(absolute, until=warmup))


def zclip(
    params: Iterable[Any],
    lr: float | Tensor = 1e-3,
    *,
    threshold: float = 2.5,
    alpha: float = 0.97,
    warmup: int = 25,
    **options: Any,
) -> AdamW:
    """ZClip: AdamW with the norm of all gradients brought down where its z-score exceeds `threshold`.

    A norm of z-score z then becomes mean + threshold^2 / z * deviation. Both are running averages, begun with `warmup`
    steps that are not clipped. Kumar, Owen, Chowdhury and Guera, "ZClip: Adaptive Spike Mitigation for LLM
    Pre-Training" (arXiv:2504.02507). `options` are AdamW's.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.zeros(4, 4))
    >>> zclip([w]).param_groups[0]["norm"]
    ZScore(threshold=2.5, alpha=0.97, warmup=25)
    """
    return _with_norm_rule(AdamW(params, lr, **{"post": None, **options}), ZScore(threshold, alpha, warmup))


def spectral_clipping(
    params: Iterable[Any], lr: float | Tensor = 1e-3, *, beta: float = 0.9, multiple: float = 1.0, **options: Any
) -> AdamW:
    """Spectral clipping: AdamW with the singular values of each gradient cut at a running mean of the largest one.

    The mean is over the steps before. Yukhimchuk, Kolar, Takac and Choudhury, "Gradient Clipping Beyond Vector Norms: A
    Spectral Approach for Matrix-Valued Parameters" (arXiv:2605.11838), who also leave embeddings and heads alone; so
    does `build`. Exact, by an SVD of each gradient. `options` are AdamW's; a `grad` among them takes this clip's place.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.zeros(4, 4))
    >>> spectral_clipping([w]).param_groups[0]["grad"]
    spectral_clip(running sigma_1, beta=0.9)
    """
    clip = Clip(spectral_clip, RunningSpectralNorm(beta, multiple))
    return AdamW(params, lr, **{"post": None, "grad": clip, **options})


def _with_norm_rule(optimizer: AdamW, rule: NormRule) -> AdamW:
    """Give every group of an optimizer, and every later one, the same rule for the norm of all gradients."""
    optimizer.defaults["norm"] = rule
    for group in optimizer.param_groups:
        group.setdefault("norm", rule)
    return optimizer
