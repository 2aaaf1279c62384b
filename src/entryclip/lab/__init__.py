"""The laboratory: the engine that runs studies, the language model, the studies of the paper and the report page."""

from .lazy import lazy_attributes

__getattr__, __dir__ = lazy_attributes(__name__, ["engine", "lm", "paper", "report"])
