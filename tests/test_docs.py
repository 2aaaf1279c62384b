"""The code in the README and the docs runs and prints what they say; links exist; tables equal the saved rows."""

import contextlib
import io
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def examples(page):
    """The Python code on a page; a block marked `continued` goes on where the one before it ended."""
    blocks = []
    for mark, code in re.findall(r"^```python( continued)?\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        if mark:
            blocks[-1] += code
        else:
            blocks.append(code)
    return blocks


BLOCKS = [pytest.param(code, id=f"{page.name}-{i}") for page in PAGES for i, code in enumerate(examples(page))]


@pytest.mark.parametrize("block", BLOCKS)
def test_examples_print_what_they_say(block):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "example", "exec"), {})
    assert printed.getvalue().splitlines() == re.findall(r"# out: (.*)$", block, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target, _, anchor in re.findall(r"\]\(([^)#]*)(#([^)]+))?\)", page.read_text()):
        if target.startswith("https://"):
            continue
        other = page.parent / target if target else page
        assert other.exists(), target
        if anchor:
            assert anchor in anchors(other), f"{target}#{anchor}"


def anchors(page):
    """The anchors that GitHub makes of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]


def test_the_readme_names_every_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert set(project["optional-dependencies"]) <= set(named)


def test_the_readmes_tree_is_the_real_one():
    tree = re.findall(r"^  (\w+\.py|\w+/) ", (ROOT / "README.md").read_text(), re.MULTILINE)
    source = ROOT / "src" / "entryclip"
    real = {path.name + ("/" if path.is_dir() else "") for path in source.iterdir() if path.name != "__pycache__"}
    assert set(tree) == real - {"__init__.py", "__main__.py", "py.typed"}


def test_tables_come_from_the_saved_rows():
    sys.path.insert(0, str(ROOT))
    from benchmarks.table import PAGES, TABLES, renewed

    texts = {page: (ROOT / page).read_text() for page in PAGES}
    assert {mark for text in texts.values() for mark in re.findall(r"<!-- (\w+) -->", text)} == set(TABLES)
    for page, text in texts.items():
        assert renewed(text, ROOT / "results") == text, f"renew {page}: python -m benchmarks.table"
