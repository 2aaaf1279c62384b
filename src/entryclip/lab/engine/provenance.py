"""What made a result: config, code, versions, commit, machine. A result is used again only where these are the same."""

import dataclasses
import hashlib
import inspect
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from .config_fields import naming_fields
from .files import JsonObject
from .schema import by_name, optional, text
from .source_hash import code_hash
from .study import DataSource, Study

PROVENANCE = {  # the schema of these keys in the JSON object of a unit or a record
    "versions": optional(by_name(optional(text()))),
    **dict.fromkeys(("python", "machine", "commit", "code", "data"), optional(text())),
}
PACKAGES = ("entryclip", "torch", "numpy", "scipy")


@dataclass(frozen=True)
class Provenance:
    """The code, versions, machine and data that rows were made with; None where a file does not say."""

    versions: Mapping[str, str]  # by package
    python: str | None = None
    machine: str | None = None
    commit: str | None = None
    code: str | None = None  # a hash of the modules that make the rows; "mixed" for units of different code
    data: str | None = None  # a hash of the data's content

    @classmethod
    def now(cls, modules: Sequence[ModuleType], data: DataSource | None = None) -> "Provenance":
        """The provenance of rows that these modules make in this process, from this data."""
        content = data.content if data else None
        return cls(versions(), platform.python_version(), platform.machine(), commit(), hash_modules(modules), content)

    @classmethod
    def from_json(cls, found: JsonObject) -> "Provenance":
        """Read it from the JSON object of a unit or a record; keys that are missing become None."""
        python, machine, commit, code, data = map(found.get, ("python", "machine", "commit", "code", "data"))
        return cls(dict(found.get("versions") or {}), python, machine, commit, code, data)

    def to_json(self) -> JsonObject:
        """The keys of a unit's or a record's JSON object; `data` only where there is some."""
        found = dataclasses.asdict(self)
        return found if self.data is not None else {key: value for key, value in found.items() if key != "data"}

    def changes(self, modules: Sequence[ModuleType], data: DataSource | None) -> list[str]:
        """Say in words what could make rows of this provenance differ from rows made now; empty if nothing could."""
        pairs = [(name, self.versions.get(name), now) for name, now in versions().items()]
        found = [f"{name} {then} (now {now})" for name, then, now in pairs if then != now]
        if self.code != hash_modules(modules):
            found.append(f"the code at commit {self.commit or 'unknown'} (now {commit() or 'unknown'})")
        if self.data is not None and (data is None or self.data != data.content):
            found.append(f"other data than is in {data.folder} now" if data else "data that is not there now")
        return found


def hash_modules(modules: Sequence[ModuleType]) -> str:
    """Hash the code of these modules and of the package's modules that they import at their top."""
    return code_hash(*(Path(str(module.__file__)) for module in modules))


def drawing_hash(study: Study[Any]) -> str:
    """Hash the code of a study's figures, claims and tables, and of all modules of the package that it imports."""
    makers = {Path(inspect.getfile(make)) for make in (study.figures, study.claims, study.tables)}
    return code_hash(*sorted(makers), inside_functions=True)


def config_hash(name: str, config: Any) -> str:
    """Name a result by the study and the fields of its config, a dataclass: equal in every process.

    The class and its module do not count, so that code can be moved without losing results.
    """
    return hash_fields(name, naming_fields(config))


def hash_fields(name: str, fields: dict[str, Any]) -> str:
    """Name a result by the study and the fields of a config that it depends on."""
    text = json.dumps([name, fields], sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@lru_cache
def versions() -> dict[str, str]:
    """The installed versions of the packages that can change a number."""
    return {package: version(package) for package in PACKAGES}


@lru_cache
def commit() -> str | None:
    """The commit of the source tree this runs from, with `+` where it has been edited; None outside of one."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD").strip()
        dirty = _git("status", "--porcelain", "--", ".").strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if dirty else "")


def _git(*words: str) -> str:
    folder = Path(__file__).parent
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True, timeout=10).stdout
