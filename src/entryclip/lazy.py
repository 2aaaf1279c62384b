"""Packages that import their modules on first use (PEP 562), so that `import entryclip` stays cheap."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_attributes(
    package: str, modules: Sequence[str], names: Mapping[str, tuple[str, str]] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the `__getattr__` and `__dir__` of a package whose attributes are imported on first use.

    package     its `__name__`
    modules     submodules that are attributes of the package
    names       further attributes: name -> (submodule, name in it)

    >>> __getattr__, __dir__ = lazy_attributes("entryclip.lab.lm", ["model"], {"Config": ("model.config", "GPTConfig")})
    >>> __dir__()
    ['Config', 'model']
    >>> __getattr__("Config").__name__
    'GPTConfig'
    """
    found = dict(names or {})

    def get(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name in found:
            module, attribute = found[name]
            value = getattr(importlib.import_module(f"{package}.{module}"), attribute)
            setattr(sys.modules[package], name, value)  # the next access does not come here
            return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted([*modules, *found])
