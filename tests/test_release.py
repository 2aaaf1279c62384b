"""The wheel and the sdist hold what they should, and the wheel alone is enough for the README's code."""

import importlib.metadata
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import entryclip

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run(*command, cwd=ROOT):
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The folder of a wheel and an sdist; the wheel is made from the sdist, as those who package it do."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder)
    return folder


def test_the_packages(dist):
    wheel, sdist = next(dist.glob("*.whl")), next(dist.glob("*.tar.gz"))
    assert wheel.name == f"entryclip-{entryclip.__version__}-py3-none-any.whl"
    assert "PASSED" in run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    files = zipfile.ZipFile(wheel).namelist()
    assert {"entryclip/py.typed", "entryclip/optim/kernels/adamw.c"} <= set(files)
    assert {name.split("/")[0] for name in files} == {"entryclip", f"entryclip-{entryclip.__version__}.dist-info"}
    described = zipfile.ZipFile(wheel).read(next(name for name in files if name.endswith("METADATA"))).decode()
    links = re.findall(r"\]\(([^)]+)\)", described)
    assert f"{PROJECT['urls']['Repository']}/blob/main/docs/tutorial.md" in links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []  # relative ones lead nowhere there
    with tarfile.open(sdist) as archive:
        top = {name.split("/")[1] for name in archive.getnames()}
    assert {"src", "tests", "docs", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"} <= top
    assert not top & {"results", "out", ".venv", ".github"}
    assert sdist.stat().st_size < 3e6


def test_the_readmes_code_runs_where_only_the_wheel_is_installed(dist, tmp_path):
    venv.create(tmp_path / "venv", symlinks=True, with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    for name in dependencies(PROJECT["dependencies"]):
        link(importlib.metadata.distribution(name), packages)
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    run(*pip, "install", "--no-index", "--no-compile", next(dist.glob("*.whl")))  # fails if a dependency is not there
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    code = "\n".join([*blocks[:2], "print(ec.__file__)"])
    *printed, where = run(python, "-I", "-c", code, cwd=tmp_path).splitlines()
    assert printed == re.findall(r"# out: (.*)$", code, re.MULTILINE)
    assert Path(where).is_relative_to(tmp_path)


def dependencies(requirements):
    """The names of installed distributions that the requirements need, and that those need in turn."""
    waiting, found = [Requirement(text) for text in requirements], set()
    while waiting:
        need = waiting.pop()
        if need.name in found or (need.marker and not need.marker.evaluate({"extra": ""})):
            continue
        found.add(need.name)
        waiting += map(Requirement, importlib.metadata.requires(need.name) or [])
    return found


def link(distribution, packages):
    """Make an installed distribution one of another environment, by links to its files."""
    tops = {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        if not (packages / top).exists():
            (packages / top).symlink_to(distribution.locate_file(top))


def test_version_and_addresses_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    site = (ROOT / "mkdocs.yml").read_text()
    assert citation["version"] == entryclip.__version__
    assert f"## {entryclip.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    urls = PROJECT["urls"]
    assert citation["repository-code"] == urls["Repository"]
    assert f"{urls['Repository']}/blob/main/" in (ROOT / "pyproject.toml").read_text()
    assert f"Repository: {urls['Repository']}\n" in site
    assert f"site_url: {urls['Documentation']}\n" in site
    assert urls["Paper"] == citation["references"][0]["url"]


def test_tools_have_the_versions_of_the_constraints():
    pinned = (ROOT / "constraints.txt").read_text()
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    for hook in hooks:
        assert re.search(rf"^{re.escape(hook['additional_dependencies'][0])}\b", pinned, re.MULTILINE)
