"""The methods of the paper's language-model tables, by name, and the optimizer each makes of a model.

They differ in what moves the hidden matrices; embeddings, head, vectors and scalars follow AdamW, not clipped.

    adamw             AdamW                                                  `tab:hyper_nanogpt_post`
    adamw-norm        with the global norm of the gradient clipped           what most people do
    post-hard         the update clipped hard at its quantile
    post-smooth       the update shrunk smoothly
    post-smooth-rms   and scaled back to the root mean square it had         a control: not only a smaller step
    muon              Muon                                                   `tab:hyper_nanogpt_pre`
    spectra           AdamW, the update's singular values softly clipped
    pre-hard          Muon, the momentum clipped hard before the matrix sign
    pre-smooth        Muon, the momentum shrunk smoothly before it
    snapshot          Muon as the speed-run of 27 May 2025 had it
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ....clip import hard, smooth
from ....optim.build import build
from ....optim.presets import spectra_clip
from ....optim.staged import Staged


@dataclass(frozen=True)
class Method:
    """How the hidden matrices are trained.

    lr          the paper's best
    level       the paper's best quantile, SPECTRA's threshold, or the largest norm of the gradient; None: no clip
    levels      others worth a try, smaller and larger
    """

    optimizer: str
    lr: float
    clip: str = ""
    level: float | None = None
    levels: tuple[float, ...] = ()
    roles: dict[str, dict[str, Any]] = field(default_factory=dict)
    warm_momentum: bool = False  # Muon's momentum rises over the first steps

    @property
    def stage(self) -> str:
        """Where the clip acts: pre, post, or on the whole gradient (norm); nowhere: empty."""
        if self.clip in ("", "norm"):
            return self.clip
        return "pre" if self.optimizer == "muon" else "post"


_POST, _PRE = (0.99, 0.999), (0.98, 0.995)
_SNAPSHOT = {
    "hidden": {"adjust_lr_fn": "original", "weight_decay": 0.0},
    "embedding": {"lr": 0.6, "betas": (0.8, 0.95), "eps": 1e-10, "weight_decay": 0.0},
    "head": {"lr": 0.22, "betas": (0.8, 0.95), "eps": 1e-10, "weight_decay": 0.0},
    "vector": {"lr": 0.04, "betas": (0.8, 0.95), "eps": 1e-10},
}
METHODS = {
    "adamw": Method("adamw", 2e-4),
    "adamw-norm": Method("adamw", 2e-4, "norm", 1.0, (0.3, 0.1)),
    "post-hard": Method("adamw", 2e-4, "hard", 0.999, (0.99, 0.995)),
    "post-smooth": Method("adamw", 6e-4, "smooth", 0.995, _POST),
    "post-smooth-rms": Method("adamw", 2e-4, "smooth-rms", 0.995, _POST),
    "muon": Method("muon", 2e-4),
    "spectra": Method("adamw", 1.6e-3, "spectra", 10.0, (3.0, 30.0)),
    "pre-hard": Method("muon", 2e-4, "hard", 0.995, (0.98, 0.99)),
    "pre-smooth": Method("muon", 6e-4, "smooth", 0.99, _PRE),
    "snapshot": Method("muon", 0.05, roles=_SNAPSHOT, warm_momentum=True),
}


def find(name: str) -> Method:
    """The method of a name."""
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}: choose from {', '.join(METHODS)}")
    return METHODS[name]


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
    """The optimizer of a method for `model`.

    lr, level   of the hidden matrices (default: the paper's)
    other_lr    of all other parameters (default: lr)
    other_decay of embeddings and head (default: weight_decay); vectors and scalars have none
    clip_where  the hidden matrices that the clip acts on, by name or with wildcards (default: all)

    >>> from entryclip.lab.lm.model.gpt import GPT, Config
    >>> optimizer = make_optimizer(GPT(Config.tiny()), "pre-smooth")
    >>> group = optimizer.param_groups[0]
    >>> group["role"], group["method"], group["lr"], group["pre"]
    ('hidden', 'muon', 0.0006, smooth_shrinkage(q=0.99))
    """
    method = find(name)
    if level is not None and method.level is None:
        raise ValueError(f"{name} has no clip, so no level: leave it out, got {level}")
    lr = method.lr if lr is None else lr
    adam: dict[str, Any] = {"betas": (0.9, 0.99), "eps": 1e-8}
    hidden = {"adjust_lr_fn": "match_rms_adamw", "pre": None} if method.optimizer == "muon" else {**adam, "post": None}
    if method.stage in ("pre", "post"):
        hidden[method.stage] = _clip(method, method.level if level is None else level, lr)
    tables = adam if other_decay is None else {**adam, "weight_decay": other_decay}
    roles = {"hidden": hidden, "embedding": tables, "head": tables, "vector": adam}
    for role, options in method.roles.items():
        roles[role] = {**roles[role], **options}
    rates: dict[str, Any] = {"lr": lr, "other_lr": other_lr, "weight_decay": weight_decay}
    return build(model, method.optimizer, **rates, roles=roles, clip_where=clip_where, fused=fused)


def _clip(method: Method, level: float | None, lr: float) -> Any:
    assert level is not None
    if method.clip == "spectra":
        return spectra_clip(lr, level)
    return hard(level) if method.clip == "hard" else smooth(level, preserve_rms=method.clip == "smooth-rms")
