"""The laboratory: the engine that runs studies, the language model, the studies of the paper and the report page."""

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from .engine.frame import load as load

__getattr__, __dir__ = lazy_attributes(
    __name__, ["engine", "lm", "paper", "report"], {"load": ("engine.frame", "load")}
)
