"""Write the lock files: what an extra needs, at the versions of constraints.txt, with the hashes of the files.

    python .ci/lock.py          in an environment with everything installed, after constraints.txt has changed

torch and triton stay out: their builds differ between machines (CPU, CUDA, ROCm), so that no hash fits all.
"""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from pip._internal.models.index import PyPI  # pip has no other way to ask for its default

HERE = Path(__file__).parent
EXTRAS = {"lab": ["lab", "lm"], "dev": ["dev"]}
BY_MACHINE = {"torch", "triton"}


def needed(name: str, extras: frozenset[str], found: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the names of all installed packages that a package needs with these extras, each with its extras."""
    name = canonicalize_name(name)
    if extras <= found.get(name, {"?"}) and name in found:
        return found
    found.setdefault(name, set()).update(extras)
    for requirement in map(Requirement, _requires(name)):
        if any(requirement.marker is None or requirement.marker.evaluate({"extra": e}) for e in (*extras, "")):
            needed(requirement.name, frozenset(requirement.extras), found)
    return found


def _requires(name: str) -> list[str]:
    """Return the requirements of a package: of entryclip those of pyproject.toml, else of its installed metadata."""
    if name != "entryclip":
        return importlib.metadata.requires(name) or []
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"].items()
    return project["dependencies"] + [_if_extra(text, extra) for extra, texts in optional for text in texts]


def _if_extra(text: str, extra: str) -> str:
    requirement, _, marker = text.partition(";")
    condition = f"extra == '{extra}'"
    return f"{requirement}; ({marker}) and {condition}" if marker else f"{requirement}; {condition}"


def hashes(name: str, version: str, index: str) -> list[str]:
    """Return the SHA-256 of every file of one version that the index has."""
    with urllib.request.urlopen(f"{index}/{canonicalize_name(name)}/", timeout=60) as page:
        links = re.findall(r">\s*([^<>]+\.(?:whl|tar\.gz))\s*</a>", text := page.read().decode())
        digests = dict(re.findall(r"/([^/\"#]+\.(?:whl|tar\.gz))#sha256=([0-9a-f]{64})", text))
    return sorted({digests[each] for each in links if each in digests and _version(each) == version})


def _version(file: str) -> str:
    """Return the version in a file's name; none where it is not a valid name of today."""
    try:
        return str(parse_wheel_filename(file)[1] if file.endswith(".whl") else parse_sdist_filename(file)[1])
    except ValueError:
        return ""


def main() -> None:
    index = sys.argv[1] if len(sys.argv) > 1 else _index_of_pip()
    pins = dict(line.split("==") for line in (HERE.parent / "constraints.txt").read_text().splitlines() if "==" in line)
    versions = {canonicalize_name(name): version.strip() for name, version in pins.items() if not name.startswith("#")}
    for file, extras in EXTRAS.items():
        names = set(needed("entryclip", frozenset(extras), {})) - BY_MACHINE - {"entryclip"}
        lines = [f"# Written by .ci/lock.py for the extras {', '.join(extras)}: all but torch and triton."]
        for name in sorted(names):
            lines += [f"{name}=={versions[name]} \\", *_hash_lines(hashes(name, versions[name], index))]
        (HERE / f"{file}.lock").write_text("\n".join(lines) + "\n")


def _index_of_pip() -> str:
    """Return the index that pip is set up to use: that of its configuration, else its default."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    configured = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return (configured or PyPI.simple_url).rstrip("/")


def _hash_lines(digests: list[str]) -> list[str]:
    if not digests:
        raise SystemExit("a package of constraints.txt has no file on the index")
    return [f"    --hash=sha256:{each}" + (" \\" if each != digests[-1] else "") for each in digests]


if __name__ == "__main__":
    main()
