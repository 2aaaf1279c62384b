"""Optional packages of the language model: a missing one is reported in one line that names the extra to install."""

import importlib
from types import ModuleType


def import_extra(module: str, purpose: str, *, extra: str = "lm") -> ModuleType:
    """Import a module of an optional package.

    >>> import_extra("no_such_package", "reading shards")
    Traceback (most recent call last):
    ...
    ImportError: reading shards needs the package no_such_package: pip install 'entryclip[lm]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _missing(module.partition(".")[0], purpose, extra) from error


def _missing(package: str, purpose: str, extra: str) -> ImportError:
    return ImportError(f"{purpose} needs the package {package}: pip install 'entryclip[{extra}]'")
