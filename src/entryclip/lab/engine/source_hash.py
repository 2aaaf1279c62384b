"""A hash of source code by what it does: comments, docstrings and layout do not count."""

import ast
import hashlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2]  # entryclip


@lru_cache
def code_hash(*paths: Path, inside_functions: bool = False) -> str:
    """Hash these files and every file of the package that they import at their top, and so on.

    With `inside_functions`, imports that stand in a function count as well.
    """
    files = sorted(source_files(*paths, inside_functions=inside_functions))
    meanings = [_meaning(ast.parse(path.read_bytes())) for path in files]
    return hashlib.sha256("\n".join(meanings).encode()).hexdigest()[:16]


def source_files(*paths: Path, inside_functions: bool = False) -> set[Path]:
    """The files that `code_hash` reads: the given ones and those of the package that they import, and so on."""
    found: set[Path] = set()
    queue = list(paths)
    while queue:
        if (path := queue.pop()) not in found:
            found.add(path)
            tree = ast.parse(path.read_bytes())
            queue += _imported(ast.walk(tree) if inside_functions else tree.body, path)
    return found


def _meaning(tree: ast.Module) -> str:
    """What a file does, without its layout and docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and _has_docstring(
            node
        ):
            node.body = node.body[1:]
    return ast.dump(tree)


def _has_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    first = node.body[0] if node.body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)


def _imported(nodes: Iterable[ast.AST], path: Path) -> list[Path]:
    """The files that these statements of a file import: relative ones, and those of the package by its full name."""
    found = []
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found += [file for alias in node.names for file in _files(_base(node, path), alias.name)]
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            found += [
                file for first, *rest in names if first == PACKAGE.name for file in _module(PACKAGE.joinpath(*rest))
            ]
    return [each for each in found if each != PACKAGE / "__init__.py"]


def _base(node: ast.ImportFrom, path: Path) -> Path | None:
    """The folder or module, without its suffix, that `from ... import` names; None outside of the package."""
    parts = (node.module or "").split(".") if node.module else []
    if node.level:
        return path.parents[node.level - 1].joinpath(*parts)
    return PACKAGE.joinpath(*parts[1:]) if parts and parts[0] == PACKAGE.name else None


def _files(base: Path | None, name: str) -> list[Path]:
    """The file that a name is imported from: a module of that name, or else the module `base` that defines it."""
    return [] if base is None else _module(base / name) or _module(base)


def _module(place: Path) -> list[Path]:
    """The file of a module or package, if there is one."""
    files = place.with_suffix(".py"), place / "__init__.py"
    return [each for each in files if each.is_file()]
