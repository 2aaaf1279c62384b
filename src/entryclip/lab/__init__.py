"""The laboratory: the engine that runs studies, the language model, the studies of the paper and the report page."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine.frame import load

__all__ = ["engine", "lm", "load", "paper", "report"]  # loaded on first use (PEP 562)


def __getattr__(name: str) -> Any:
    if name == "load":
        return importlib.import_module(".engine.frame", __name__).load
    if name in __all__:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
