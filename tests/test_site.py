"""The documentation site builds without a warning, shows every public name, and loads nothing from other hosts."""

import ast
import contextlib
import html
import importlib.util
import os
import re
import subprocess
import sys
import threading
import time
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import browser
import pytest
from filelock import FileLock

ROOT = Path(__file__).parent.parent
PUBLIC = ["", ".optim", ".noise", ".theory", ".diagnostics", ".testing", ".lab.lm"]
INTEGRATIONS = ROOT / "src" / "entryclip" / "integrations"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, which is built once for all processes of the tests."""
    parallel = "PYTEST_XDIST_WORKER" in os.environ
    folder = (tmp_path_factory.getbasetemp().parent if parallel else tmp_path_factory.mktemp("built")) / "site"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            # not --quiet: that hides warnings from --strict as well
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
            assert done.returncode == 0, done.stderr
    return folder


class Tags(HTMLParser):
    """The ids of a page, and the addresses that a browser loads by itself."""

    def __init__(self, page):
        super().__init__()
        self.ids, self.loaded = set(), set()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids.add(found.get("id"))
        styles = tag == "link" and found.get("rel") in ("stylesheet", "icon")
        if styles or tag in ("script", "img", "iframe"):
            self.loaded.add(found.get("src") or found.get("href") or "")


def pages(site):
    return sorted(site.rglob("*.html"))


def words(text):
    return re.sub(r"\s+", " ", re.sub(r"[`*]", "", text))


@pytest.fixture(scope="module")
def reference(site):
    """The ids of all pages of the reference, and their text."""
    found = pages(site / "reference")
    text = "".join(re.sub(r"<[^>]*>", "", page.read_text()) for page in found)
    return set().union(*(Tags(page).ids for page in found)), words(html.unescape(text))


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_in_the_reference(reference, package):
    module = importlib.import_module(f"entryclip{package}")
    ids, text = reference
    for name in module.__all__:
        # a function named like its module, as `optim.build`, is there by the path of its definition
        paths = {f"{module.__name__}.{name}", f"{getattr(module, name).__module__}.{name}"}
        assert paths & ids, f"{module.__name__}.{name} is missing in docs/reference"
        summary = words(getattr(module, name).__doc__).strip()[:30]
        assert summary in text, f"the docstring of {module.__name__}.{name} is not shown"


def test_every_integration_is_in_the_reference(reference):
    ids, _ = reference
    names = [f"{path.parent.name}.{name}" for path in INTEGRATIONS.glob("*/*.py") for name in defined(path)]
    names += [f"{path.stem}.{name}" for path in INTEGRATIONS.glob("*.py") for name in defined(path)]
    shown = {f"{found.split('.')[2]}.{found.split('.')[-1]}" for found in map(str, ids) if found.count(".") > 2}
    assert "lightning.MonitorCallback" in names
    assert set(names) <= shown, "add them to docs/reference/integrations.md"


def defined(path):
    """The public names of a file, read without importing the library that it is for: `__all__`, or definitions."""
    body = ast.parse(path.read_text()).body
    lists = [
        node.value for node in body if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
    ]
    if lists:
        return ast.literal_eval(lists[0])
    if path.parent != INTEGRATIONS or path.stem == "__init__":
        return []  # a part of an integration: its package says what is public
    return [node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name[0] != "_"]


def test_plain_docstrings_become_markdown():
    found = importlib.util.spec_from_file_location("docstrings", ROOT / "docs" / "_site" / "docstrings.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    text = "Clip x.\n\nx    any array\n     of numbers\ny    another\n\n    x -> y    a formula\n\n>>> 1 + 1\n2"
    assert module.to_markdown(text) == (
        "Clip x.\n\n- **`x`** any array of numbers\n- **`y`** another\n\n    x -> y    a formula\n\n"
        "```pycon\n>>> 1 + 1\n2\n```"
    )


def test_arguments_are_a_list_and_examples_are_code(site):
    page = (site / "reference" / "matrix.html").read_text()
    assert re.search(r"<li>\s*(<p>)?<strong><code>nonzero</code></strong> rank only", page)
    assert "<blockquote>" not in page


def test_all_that_pages_load_is_on_the_site(site):
    assert len(pages(site)) > 25
    for page in pages(site):
        for address in Tags(page).loaded - {""}:
            assert not re.match(r"(https?:)?//", address), f"{page.name} loads {address}"
            found = site / address[1:] if address.startswith("/") else page.parent / address
            assert address.startswith("/entryclip/") or found.is_file(), f"{page.name} loads {address}"


def test_links_out_of_docs_lead_somewhere_on_the_site(site):
    assert 'src="results/regression/speedup.svg"' in (site / "regression.html").read_text()
    assert 'href="CONTRIBUTING.html#a-new-study"' in (site / "studies.html").read_text()
    assert 'href="auto.html"' in (site / "CHANGELOG.html").read_text()
    assert 'id="a-new-study"' in (site / "CONTRIBUTING.html").read_text()


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that writes no log."""

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(folder):
    """The address of a server of the site: a browser searches only a site that is served."""

    def handler(*args):
        return Quiet(*args, directory=folder)

    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Address(str):
    """An address, with what `Page.open` asks of a path."""

    def as_uri(self):
        return str(self)


FOUND = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.getAttribute('href')).join()"


@pytest.mark.skipif(browser.PROGRAM is None, reason="no Chromium")
def test_in_a_browser(site, tmp_path):
    with served(site) as home, browser.browse(tmp_path) as page:
        page.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
        for name in ("index", "regression", "reference/optim"):
            page.open(Address(f"{home}/{name}.html"), dark=True)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, f"{name} is wider than a phone"
            assert page.evaluate("document.body.dataset.mdColorScheme") == "slate"
        page.call("Emulation.setDeviceMetricsOverride", width=1400, height=900, deviceScaleFactor=1, mobile=False)
        page.open(Address(f"{home}/index.html?q=smooth_shrinkage"))
        assert page.evaluate("document.body.dataset.mdColorScheme") == "default"
        until = time.monotonic() + 60
        while "reference/operators.html" not in page.evaluate(FOUND):
            assert time.monotonic() < until, f"the search found {page.evaluate(FOUND)!r}"
            time.sleep(0.2)
        hosts = {address.split("/")[2] for address in page.requested() if address.startswith("http")}
        assert hosts == {home.removeprefix("http://")}
        assert page.errors == []
