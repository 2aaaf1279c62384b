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
SUMMARIES = {  # what `entryclip --help` says of each command, which needs none of the packages
    "reproduce": "run a study of the paper: rows, figures, claims and a page",
    "sweep": "run a study for every combination of values of its config",
    "train": "train a language model by one of the paper's methods",
    "diagnose": "measure the gradient noise of your model: does it call for clipping?",
    "theory": "print what the four convergence theorems say",
    "bench": "prove the optimizers right on this machine, and time them",
    "report": "write one page about a folder of results, or compare training runs",
    "data": "make token shards from text (prepare), or download them (fineweb)",
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


def overview() -> str:
    """Return the text of `entryclip --help`: every command, the extras it needs, and what is not installed."""
    lines = [f"  {name:<10}  {SUMMARIES[name]:<70}  [{','.join(EXTRAS[name])}]" for name in EXTRAS]
    absent = [extra for extra in PACKAGES if any(_absent(extra))]
    install = f"not installed: pip install 'entryclip[{','.join(absent)}]'" if absent else "all of them are installed"
    return "\n".join(
        [
            "usage: entryclip COMMAND [OPTIONS]     entryclip COMMAND --help     entryclip --version",
            "",
            "Entry-wise clipping of gradients: diagnose a model, run the paper's studies, train its language model.",
            "",
            *lines,
            "",
            f"In brackets: the extras of the package that a command needs; {install}.",
        ]
    )


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
