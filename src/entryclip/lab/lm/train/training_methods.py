"""The methods of the paper's language-model tables, by name, and the optimizer of each.

They differ in how the hidden matrices are trained; embeddings, head, vectors and scalars follow AdamW without a clip
unless it says otherwise.

    adamw             AdamW                                                  `tab:hyper_nanogpt_post`
    adamw-norm        AdamW, the global norm of the gradient clipped         the usual practice
    post-hard         AdamW, the update clipped hard at its quantile
    post-smooth       AdamW, the update shrunk smoothly
    post-smooth-rms   the same, scaled back to its root mean square          a control: not only a smaller step
    muon              Muon                                                   `tab:hyper_nanogpt_pre`
    spectra           AdamW, the update's singular values softly clipped
    pre-hard          Muon, the momentum clipped hard before the matrix sign
    pre-smooth        Muon, the momentum shrunk smoothly before the matrix sign
    adamw-hard        AdamW, the gradient clipped hard at its quantile       spoils no moment
    adamw-smooth      AdamW, the gradient shrunk smoothly
    muon-norm         Muon, the global norm of the gradient clipped
    adamw-auto        AdamW, the gradient clipped as `auto()` decides        no level to choose
    post-auto         AdamW, the update so
    muon-auto         Muon, the gradient so
    pre-auto          Muon, the momentum so before the matrix sign
    snapshot          Muon as the speed-run of 27 May 2025 had it
    post-smooth-slope AdamW, the update shrunk smoothly, its slope kept      a control: the step size is AdamW's

Baselines that others published, on all parameters as published (see `entryclip.optim.presets`):

    adagc             AdamW, each gradient's norm against its running mean   arXiv:2502.11034
    zclip             AdamW, the global norm against its running z-score     arXiv:2504.02507
    stable-adamw      AdamW, the step over the RMS of g / sqrt(v)            arXiv:2304.13013
    spam              AdamW, entries cut by their second moment, resets      arXiv:2501.06842
    stable-spam       AdamW, largest entries and norm held to their past     arXiv:2502.17055

and on the hidden matrices:

    spectral-clipping AdamW, the gradient's singular values cut at a running sigma_1    arXiv:2605.11838
    normuon           Muon, rows of the update over their running RMS                   arXiv:2510.05491
    muon-standardized Muon, the momentum over its running row and column scales         a question of docs/scales.md
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from torch import nn

from ....clip import Clip, auto, hard, smooth
from ....matrix.clips import spectral_clip
from ....norm_thresholds import RunningNorm, RunningSpectralNorm
from ....operators import global_clip
from ....optim.build import build
from ....optim.norm_rules import MaxNorm, NormRule, ZScore
from ....optim.presets import spectra_clip
from ....optim.staged import Staged
from ....standardize import standardized
from .slope_kept import smooth_slope_kept

OTHER_LR = 2e-4  # of embeddings, head and vectors unless given: the paper's best of AdamW and of Muon without a clip
GroupOptions = Mapping[str, Any]  # options of a param group, as `build(roles=...)` takes them


class ClipStage(StrEnum):
    """Where a method clips: the gradient, the momentum before the sign, the update, a global norm, or nothing."""

    GRAD = "grad"
    PRE = "pre"
    POST = "post"
    NORM = "norm"
    RUNNING_NORM = "running norm"
    NONE = ""

    @property
    def acts_on_matrices(self) -> bool:
        """Whether each hidden matrix is clipped by itself."""
        return self in (ClipStage.GRAD, ClipStage.PRE, ClipStage.POST)


@dataclass(frozen=True)
class TrainingMethod:
    """How the hidden matrices are trained: an optimizer, and a clip at one of its stages.

    lr          the paper's best learning rate
    stage       where the clip acts
    level       the paper's best level of the clip: a quantile, or a threshold where `level_is_quantile` is False
    levels      other levels that a search may try
    clip        makes the clip from its level and the learning rate; None for norm and for no clip
    own_clip    a clip that has no level to choose, in place of `clip`
    norm        makes the rule for the norm of all gradients from the level
    variant     the method of the param groups, where it is not `optimizer` itself but one that goes on from its state
    everywhere  whether clip, norm rule and variant are those of all parameters, not of the hidden matrices alone
    roles       options per role of parameter that differ from the other methods'
    """

    name: str
    optimizer: Literal["adamw", "muon"]
    lr: float
    stage: ClipStage = ClipStage.NONE
    level: float | None = None
    levels: tuple[float, ...] = ()
    clip: Callable[[float, float], Clip] | None = None
    level_is_quantile: bool = True
    roles: Mapping[str, GroupOptions] = field(default_factory=dict)
    own_clip: Clip | None = None
    norm: Callable[[float], NormRule] | None = None
    variant: str | None = None
    everywhere: bool = False
    warm_momentum: bool = False  # Muon's momentum rises over the first steps

    @property
    def judges_by_the_past(self) -> bool:
        """Whether what it does to a gradient depends on more than AdamW's or Muon's own state and the gradient itself.

        Such a method cannot go on from a checkpoint of AdamW or Muon as if it had made it.
        """
        clip = self.make_clip(None, self.lr)
        return bool(self.variant or self.norm or (clip is not None and clip.has_memory))

    def check_level(self, level: float) -> None:
        """Refuse a level that the method cannot clip at."""
        if self.stage is ClipStage.NONE:
            raise ValueError(f"level is for methods that clip, {self.name} does not: leave it out, got {level}")
        if self.own_clip is not None:
            raise ValueError(f"{self.name} has no level to choose: leave it out, got {level}")
        if self.level_is_quantile and not 0 < level <= 1:
            raise ValueError(f"level is the quantile of {self.name}, in (0, 1], got {level}")
        if not 0 < level < math.inf:
            raise ValueError(f"level is the threshold of {self.name}, a finite number above 0, got {level}")

    def make_clip(self, level: float | None, lr: float) -> Clip | None:
        """Make the clip of a param group at `level` (None: the paper's); None where no group is clipped."""
        level = self.level if level is None else level
        return self.own_clip if self.clip is None or level is None else self.clip(level, lr)

    def options(self, level: float | None, lr: float) -> tuple[GroupOptions, GroupOptions]:
        """Return the options of hidden matrices and of all other parameters that make this method of AdamW or Muon."""
        own: dict[str, Any] = {"method": self.variant} if self.variant else {}
        if self.stage.acts_on_matrices:
            own[str(self.stage)] = self.make_clip(level, lr)
        level = self.level if level is None else level
        if self.norm is not None and level is not None:
            own["norm"] = self.norm(level)
        return own, ({**own, "clip_vectors": True} if self.everywhere else {})


def _hard(level: float, lr: float) -> Clip:
    return hard(level)


def _smooth(level: float, lr: float) -> Clip:
    return smooth(level)


def _smooth_rms(level: float, lr: float) -> Clip:
    return smooth(level, preserve_rms=True)


def _smooth_slope(level: float, lr: float) -> Clip:
    return smooth_slope_kept(level)


def _spectra(level: float, lr: float) -> Clip:
    return spectra_clip(lr, level)


_ADAGC_WARMUP = RunningNorm().warmup


def _adagc(level: float, lr: float) -> Clip:
    return Clip(global_clip, RunningNorm(level))


def _adagc_norm(level: float) -> NormRule:
    return MaxNorm(1.0, until=_ADAGC_WARMUP)


def _spectral(level: float, lr: float) -> Clip:
    return Clip(spectral_clip, RunningSpectralNorm(multiple=level))


_SPEEDRUN_ADAM: GroupOptions = {"betas": (0.8, 0.95), "eps": 1e-10}
_SPEEDRUN_ROLES: Mapping[str, GroupOptions] = {
    "hidden": {"adjust_lr_fn": "original", "weight_decay": 0.0},
    "embedding": {"lr": 0.6, **_SPEEDRUN_ADAM, "weight_decay": 0.0},
    "head": {"lr": 0.22, **_SPEEDRUN_ADAM, "weight_decay": 0.0},
    "vector": {"lr": 0.04, **_SPEEDRUN_ADAM},
}
_GRAD, _PRE, _POST, _NORM = ClipStage.GRAD, ClipStage.PRE, ClipStage.POST, ClipStage.NORM
_ABSOLUTE: dict[str, Any] = {"level_is_quantile": False}
_PUBLISHED: dict[str, Any] = {"level_is_quantile": False, "everywhere": True}
TRAINING_METHODS = {
    method.name: method
    for method in (
        TrainingMethod("adamw", "adamw", 2e-4),
        TrainingMethod("adamw-norm", "adamw", 2e-4, _NORM, 1.0, (0.3, 0.1), level_is_quantile=False),
        TrainingMethod("post-hard", "adamw", 2e-4, _POST, 0.999, (0.99, 0.995), _hard),
        TrainingMethod("post-smooth", "adamw", 6e-4, _POST, 0.995, (0.99, 0.999), _smooth),
        TrainingMethod("post-smooth-rms", "adamw", 2e-4, _POST, 0.995, (0.99, 0.999), _smooth_rms),
        TrainingMethod("muon", "muon", 2e-4),
        TrainingMethod("spectra", "adamw", 1.6e-3, _POST, 10.0, (3.0, 30.0), _spectra, level_is_quantile=False),
        TrainingMethod("pre-hard", "muon", 2e-4, _PRE, 0.995, (0.98, 0.99), _hard),
        TrainingMethod("pre-smooth", "muon", 6e-4, _PRE, 0.99, (0.98, 0.995), _smooth),
        TrainingMethod("adamw-hard", "adamw", 2e-4, _GRAD, 0.999, (0.99, 0.995), _hard),
        TrainingMethod("adamw-smooth", "adamw", 2e-4, _GRAD, 0.995, (0.99, 0.999), _smooth),
        TrainingMethod("muon-norm", "muon", 2e-4, _NORM, 1.0, (0.3, 0.1), level_is_quantile=False),
        TrainingMethod("adamw-auto", "adamw", 2e-4, _GRAD, own_clip=auto()),
        TrainingMethod("post-auto", "adamw", 2e-4, _POST, own_clip=auto()),
        TrainingMethod("muon-auto", "muon", 2e-4, _GRAD, own_clip=auto()),
        TrainingMethod("pre-auto", "muon", 2e-4, _PRE, own_clip=auto()),
        TrainingMethod("snapshot", "muon", 0.05, roles=_SPEEDRUN_ROLES, warm_momentum=True),
        TrainingMethod("post-smooth-slope", "adamw", 2e-4, _POST, 0.995, (0.99, 0.999), _smooth_slope),
        TrainingMethod("adagc", "adamw", 2e-4, _GRAD, 1.04, (1.02, 1.1), _adagc, norm=_adagc_norm, **_PUBLISHED),
        TrainingMethod("zclip", "adamw", 2e-4, ClipStage.RUNNING_NORM, 2.5, (2.0, 3.0), norm=ZScore, **_PUBLISHED),
        TrainingMethod("stable-adamw", "adamw", 2e-4, variant="stable-adamw", **_PUBLISHED),
        TrainingMethod("spam", "adamw", 2e-4, variant="spam", **_PUBLISHED),
        TrainingMethod("stable-spam", "adamw", 2e-4, variant="stable-spam", **_PUBLISHED),
        TrainingMethod("spectral-clipping", "adamw", 2e-4, _GRAD, 1.0, (0.5, 2.0), _spectral, **_ABSOLUTE),
        TrainingMethod("normuon", "muon", 2e-4, variant="normuon"),
        TrainingMethod("muon-standardized", "muon", 2e-4, _PRE, own_clip=standardized()),
    )
}


def find(name: str) -> TrainingMethod:
    """Return the method of a name.

    >>> find("post-smooth").level
    0.995
    """
    if name not in TRAINING_METHODS:
        raise ValueError(f"unknown method {name!r}: choose from {', '.join(TRAINING_METHODS)}")
    return TRAINING_METHODS[name]


def make_optimizer(
    model: nn.Module,
    name: str,
    *,
    lr: float | None = None,
    other_lr: float | None = None,
    level: float | None = None,
    weight_decay: float = 0.1,
    other_decay: float | None = None,
    clip_where: Sequence[str] | None = None,
    fused: bool = False,
) -> Staged:
    """Make the optimizer of a method for all parameters of `model`.

    lr, level   learning rate and clip level of the hidden matrices (default: the paper's)
    other_lr    learning rate of all other parameters (default: `OTHER_LR`, whatever the method and its own rate)
    other_decay weight decay of embeddings and head (default: weight_decay); vectors and scalars have none
    clip_where  the matrices that the clip acts on, by name or with wildcards (default: all hidden ones); embeddings and
                head are named by patterns that fit no hidden matrix

    >>> from entryclip.lab.lm import GPT, Config
    >>> optimizer = make_optimizer(GPT(Config.tiny()), "pre-smooth")
    >>> group = optimizer.param_groups[0]
    >>> group["role"], group["method"], group["lr"], group["pre"]
    ('hidden', 'muon', 0.0006, smooth_shrinkage(q=0.99))
    """
    method = find(name)
    if level is not None:
        method.check_level(level)
    lr = method.lr if lr is None else lr
    adam: GroupOptions = {"betas": (0.9, 0.99), "eps": 1e-8}
    tables = adam if other_decay is None else {**adam, "weight_decay": other_decay}
    hidden: GroupOptions = {**adam, "post": None}  # in place of the class's own clip
    if method.optimizer == "muon":
        hidden = {"adjust_lr_fn": "match_rms_adamw", "pre": None}
    common: Mapping[str, GroupOptions] = {"hidden": hidden, "embedding": tables, "head": tables, "vector": adam}
    for_hidden, for_others = method.options(level, lr)
    return build(
        *(model, method.optimizer),
        lr=lr,
        other_lr=OTHER_LR if other_lr is None else other_lr,
        weight_decay=weight_decay,
        roles={
            role: {**options, **(for_hidden if role == "hidden" else for_others), **method.roles.get(role, {})}
            for role, options in common.items()
        },
        clip_where=clip_where,
        fused=fused,
    )
