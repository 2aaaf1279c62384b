"""torch optimizers with clips at every stage: SGD, AdamW, Muon, and groups of them in one."""

from .adamw import AdamW
from .attach import attach
from .build import build, explain
from .clipped_mean import ClippedMean
from .muon import Muon
from .presets import AdaMuon, root, spectra, spectral_gd
from .sgd import SGD
from .staged import Staged

__all__ = [
    "SGD",
    "AdaMuon",
    "AdamW",
    "ClippedMean",
    "Muon",
    "Staged",
    "attach",
    "build",
    "explain",
    "root",
    "spectra",
    "spectral_gd",
]
