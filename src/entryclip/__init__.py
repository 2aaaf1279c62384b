"""Spectral control of stochastic gradients by cheap entry-wise clipping.

import entryclip as ec

clip = ec.smooth(0.995)     # x * exp(-|x|/c), c the 0.995-quantile of |x|
clip(x)                     # torch, numpy or jax; one threshold per matrix
"""

from typing import TYPE_CHECKING

from .lazy import lazy_attributes

if TYPE_CHECKING:  # for type checkers and editors; at run time __getattr__ below imports a name on first use
    from . import diagnostics as diagnostics
    from . import integrations as integrations
    from . import lab as lab
    from . import noise as noise
    from . import optim as optim
    from . import testing as testing
    from . import theory as theory
    from .auto_threshold import Auto
    from .clip import Clip, auto, hard, smooth
    from .matrix.clips import soft_spectral_clip, spectral_clip
    from .matrix.sign import msign
    from .matrix.singular import top_singular
    from .operators import global_clip, hard_clip, smooth_shrinkage, soft_threshold
    from .quantiles.quantile import quantile_abs
    from .standardize import standardized
    from .thresholds import Fixed, FollowLR, Quantile, Running, Scale

__version__ = "0.2.0"

__all__ = [
    "Auto",
    "Clip",
    "Fixed",
    "FollowLR",
    "Quantile",
    "Running",
    "Scale",
    "auto",
    "global_clip",
    "hard",
    "hard_clip",
    "msign",
    "quantile_abs",
    "smooth",
    "smooth_shrinkage",
    "soft_spectral_clip",
    "soft_threshold",
    "spectral_clip",
    "standardized",
    "top_singular",
]

_SUBPACKAGES = ("diagnostics", "integrations", "lab", "noise", "optim", "testing", "theory")

_MODULES = {
    "auto_threshold": ("Auto",),
    "clip": ("Clip", "auto", "hard", "smooth"),
    "matrix.clips": ("soft_spectral_clip", "spectral_clip"),
    "matrix.sign": ("msign",),
    "matrix.singular": ("top_singular",),
    "operators": ("global_clip", "hard_clip", "smooth_shrinkage", "soft_threshold"),
    "quantiles.quantile": ("quantile_abs",),
    "standardize": ("standardized",),
    "thresholds": ("Fixed", "FollowLR", "Quantile", "Running", "Scale"),
}

__getattr__, __dir__ = lazy_attributes(
    __name__, _SUBPACKAGES, {name: (module, name) for module, names in _MODULES.items() for name in names}
)
