"""torch optimizers with clips at every stage: SGD, AdamW, Muon, and groups of them in one."""

from .adamw import AdamW
from .muon import Muon
from .sgd import SGD
from .staged import Staged

__all__ = ["SGD", "AdamW", "Muon", "Staged"]
