"""Spectral control of stochastic gradients by cheap entry-wise clipping.

import entryclip as ec

clip = ec.smooth(0.995)     # x * exp(-|x|/c), c the 0.995-quantile of |x|
clip(x)                     # torch, numpy or jax; one threshold per matrix
"""

import importlib
from typing import Any

from .clip import Clip, hard, smooth
from .matrix.clips import soft_spectral_clip, spectral_clip
from .matrix.sign import msign
from .matrix.singular import top_singular
from .operators import global_clip, hard_clip, smooth_shrinkage, soft_threshold
from .quantiles.quantile import quantile_abs
from .thresholds import Fixed, FollowLR, Quantile, Running, Scale, Step

__version__ = "0.1.0"

_SUBPACKAGES = (
    "diagnostics",
    "integrations",
    "lab",
    "noise",
    "optim",
    "testing",
    "theory",
)  # loaded on first use (PEP 562)

__all__ = [
    "Clip",
    "Fixed",
    "FollowLR",
    "Quantile",
    "Running",
    "Scale",
    "Step",
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
    "top_singular",
]


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBPACKAGES])
