"""What made a result: config, code, versions, commit, machine. A result is used again only where these are the same."""

import ast
import dataclasses
import hashlib
import json
import platform
import subprocess
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = Path(__file__).parent
PACKAGES = ("entryclip", "torch", "numpy", "scipy")
ROWS = ("Config", "units", "run_unit", "run")  # the names of an experiment that make its rows


def provenance(module: ModuleType) -> dict[str, Any]:
    """As it stands in every file of rows."""
    return {
        "versions": versions(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "commit": commit(),
        "code": code_hash(_file(module)),
    }


def drawing_hash(module: ModuleType) -> str:
    """Of all that makes the rows, figures and claims of an experiment."""
    return code_hash(_file(module), whole=True)


def changes(old: dict[str, Any], module: ModuleType) -> list[str]:
    """What could make the rows of `old` differ from those of today, in words; empty where nothing could."""
    then = old.get("versions") or {}
    found = [f"{name} {then.get(name)} (now {now})" for name, now in versions().items() if then.get(name) != now]
    if old.get("code") != code_hash(_file(module)):
        found.append(f"the code at commit {old.get('commit') or 'unknown'} (now {commit() or 'unknown'})")
    return found


def config_hash(config: Any) -> str:
    """Names a result by what was asked for: the same for equal configs, in every process."""
    text = json.dumps([type(config).__module__, dataclasses.asdict(config)], sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@lru_cache
def versions() -> dict[str, str]:
    return {package: version(package) for package in PACKAGES}


@lru_cache
def commit() -> str | None:
    """The commit of the source tree this runs from, with `+` where it has been edited; None outside of one."""
    try:
        where = {"cwd": Path(__file__).parent, "capture_output": True, "text": True, "check": True, "timeout": 10}
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], **where).stdout.strip()  # type: ignore[call-overload]
        dirty = subprocess.run(["git", "status", "--porcelain", "--", "."], **where).stdout  # type: ignore[call-overload]
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if dirty.strip() else "")


@lru_cache
def code_hash(path: Path, *, whole: bool = False) -> str:
    """Of an experiment's file and every file of the package that it imports at its top, and so on.

    Comments, docstrings and layout do not count, nor what in the experiment's file only draws figures or words claims:
    changing those needs no new rows. The `whole` counts that too, and imports inside functions.
    """
    trees: dict[Path, str] = {}
    queue = [path]
    while queue:
        if (each := queue.pop()) not in trees:
            tree = ast.parse(each.read_bytes())
            trees[each] = _meaning(_reachable(tree) if each == path and not whole else tree.body)
            queue += _imports(ast.walk(tree) if whole else tree.body, each)
    return hashlib.sha256("\n".join(trees[each] for each in sorted(trees)).encode()).hexdigest()[:16]


def _meaning(statements: list[ast.stmt]) -> str:
    """What they do, without layout and docstrings."""
    module = ast.Module(statements, type_ignores=[])
    for node in ast.walk(module):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            node.body = body[1:]  # type: ignore[attr-defined]
    return ast.dump(module)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _reachable(tree: ast.Module) -> list[ast.stmt]:
    """The statements at the top of a file that `ROWS` lead to; and imports and the like, which define no name here."""
    wanted, kept = set(ROWS), set[ast.stmt]()
    while True:
        new = [node for node in tree.body if node not in kept and (not _defines(node) or _defines(node) & wanted)]
        if not new:
            return [node for node in tree.body if node in kept]
        kept.update(new)
        wanted.update(each.id for node in new for each in ast.walk(node) if isinstance(each, ast.Name))


def _defines(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _imports(nodes: Iterable[ast.AST], path: Path) -> list[Path]:
    """The package's own files that these statements of a file import."""
    found = []
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*path.parts[: len(path.parts) - node.level], *(node.module or "").split(".")]
            folder = Path(*[part for part in base if part])
            found += [folder, *(folder / alias.name for alias in node.names)]
    files = [each.with_suffix(".py") for each in found] + [each / "__init__.py" for each in found]
    return [each for each in files if each.is_file() and each != PACKAGE / "__init__.py"]


def _file(module: ModuleType) -> Path:
    return Path(str(module.__file__))
