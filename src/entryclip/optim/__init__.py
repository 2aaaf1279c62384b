"""torch optimizers with entry-wise clips at every stage: SGD, AdamW, Muon, and groups of them in one."""

from .attach import attach
from .build import build, explain
from .clip_report import clip_report
from .clipped_mean import ClippedMean
from .methods.adamuon import AdaMuon
from .methods.adamw import AdamW
from .methods.muon import Muon
from .methods.sgd import SGD
from .names import name_parameters
from .presets import root, spectra, spectral_gd
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
    "clip_report",
    "explain",
    "name_parameters",
    "root",
    "spectra",
    "spectral_gd",
]
