"""What is installed is what was tested: lock files, lower bounds, the tool of the build and the list of licences."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BY_MACHINE = {"torch", "triton"}  # whose builds differ between machines: no hash fits all


def pins(path):
    """The versions that a file of requirements names, by package."""
    found = re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / path).read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


@pytest.mark.parametrize("file", [".ci/lab.lock", ".ci/dev.lock"])
def test_locked_packages_are_the_tested_ones_and_have_hashes(file):
    locked, tested = pins(file), pins("constraints.txt")
    assert {name: tested.get(name) for name in locked} == locked
    entries = re.split(r"^(?=[\w.-]+==)", (ROOT / file).read_text(), flags=re.MULTILINE)[1:]
    assert len(entries) == len(locked)
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
    assert not BY_MACHINE & locked.keys()


def test_the_locks_hold_all_that_the_extras_name():
    optional = PROJECT["project"]["optional-dependencies"]
    for file, extras in ((".ci/lab.lock", ["lab", "lm"]), (".ci/dev.lock", optional.keys())):
        named = {canonicalize_name(Requirement(text).name) for extra in extras for text in optional[extra]}
        assert named - BY_MACHINE - {"entryclip"} <= pins(file).keys()


def test_the_tested_versions_are_allowed():
    project, tested = PROJECT["project"], pins("constraints.txt")
    texts = [*project["dependencies"], *(text for each in project["optional-dependencies"].values() for text in each)]
    for requirement in map(Requirement, texts):
        if requirement.name != "entryclip":
            assert tested[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_the_lower_bounds_of_the_core_are_the_ones_that_are_tested():
    lowest = pins(".ci/lowest.txt")
    for requirement in map(Requirement, PROJECT["project"]["dependencies"]):
        (bound,) = requirement.specifier
        assert bound.operator == ">="
        assert lowest[requirement.name] in (bound.version, f"{bound.version}.0")


def test_the_build_is_pinned():
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", each) for each in PROJECT["build-system"]["requires"])


def test_every_package_has_a_licence():
    rows = re.findall(r"^\| ([\w.-]+) \| ([\w.]+) \| (.+) \|$", (ROOT / "docs/licences.md").read_text(), re.MULTILINE)
    listed = {name: version for name, version, _ in rows if name != "package"}
    assert listed == {**pins(".ci/lab.lock"), "torch": pins("constraints.txt")["torch"]}
    assert all(licence != "not stated" for _, _, licence in rows)
