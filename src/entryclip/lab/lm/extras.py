"""Optional packages of the language model: a missing one is reported in one line that names the extra to install."""

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
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


def check_packages(purpose: str, packages: Mapping[str, Sequence[str]]) -> None:
    """Make sure, before a long command starts, that the packages of each extra are installed.

    packages    names of extras to packages that `purpose` needs of them

    >>> check_packages("entryclip train", {"lm": ["torch", "no_such_package"]})
    Traceback (most recent call last):
    ...
    ImportError: entryclip train needs the package no_such_package: pip install 'entryclip[lm]'
    """
    for extra, names in packages.items():
        for name in names:
            if importlib.util.find_spec(name) is None:
                raise _missing(name, purpose, extra)


def _missing(package: str, purpose: str, extra: str) -> ImportError:
    return ImportError(f"{purpose} needs the package {package}: pip install 'entryclip[{extra}]'")
