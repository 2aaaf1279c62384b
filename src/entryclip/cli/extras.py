"""The optional packages that each command needs. `pip install entryclip` alone installs the library without them."""

import importlib.util
from collections.abc import Iterator

PACKAGES = {
    "lab": ("matplotlib", "jinja2", "rich", "tyro", "joblib", "filelock", "pandas"),
    "lm": ("tokenizers", "tiktoken", "huggingface_hub", "safetensors", "scikit-learn"),
    "optax": ("optax",),
}
_MODULES = {"scikit-learn": "sklearn"}  # where a package's module has another name
EXTRAS = {
    "reproduce": ("lab",),
    "sweep": ("lab",),
    "train": ("lab", "lm"),
    "diagnose": ("lab",),
    "theory": ("lab",),
    "bench": ("lab",),
    "report": ("lab",),
    "data": ("lab", "lm"),
}


def missing(command: str) -> str | None:
    """Return one line that says what to install for a command, or None if all is there.

    For anything that is no command, such as `--help`, it lists the commands.
    """
    extras = [extra for extra in EXTRAS.get(command, ("lab",)) if any(_absent(extra))]
    if not extras:
        return None
    install = f"pip install 'entryclip[{','.join(extras)}]'"
    if command not in EXTRAS:
        return f"the commands {', '.join(EXTRAS)} need more packages: {install}"
    absent = ", ".join(package for extra in extras for package in _absent(extra))
    return f"{command} needs {absent}: {install}"


def with_remedy(error: ImportError) -> str:
    """Return the message of an import that failed, with what to install if a package of an extra is missing.

    >>> with_remedy(ModuleNotFoundError("No module named 'tokenizers'", name="tokenizers"))
    "No module named 'tokenizers': pip install 'entryclip[lm]'"
    """
    root = (error.name or "").partition(".")[0]
    extras = [extra for extra, packages in PACKAGES.items() if root in map(_module, packages)]
    return f"{error}: pip install 'entryclip[{extras[0]}]'" if extras else str(error)


def _absent(extra: str) -> Iterator[str]:
    """Yield the packages of an extra that are not installed."""
    for package in PACKAGES[extra]:
        try:
            found = importlib.util.find_spec(_module(package)) is not None
        except ValueError:  # `sys.modules` holds None for it
            found = False
        if not found:
            yield package


def _module(package: str) -> str:
    """Return the name by which a package is imported."""
    return _MODULES.get(package, package)
