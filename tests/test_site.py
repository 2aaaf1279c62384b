"""The documentation site: it builds without a warning, documents every public name, and loads nothing from other hosts."""

import contextlib
import functools
import importlib
import re
import subprocess
import sys
import threading
import time
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from browser import PROGRAM, browse
from filelock import FileLock

ROOT = Path(__file__).parent.parent
PUBLIC = ["", ".optim", ".noise", ".theory", ".diagnostics", ".testing", ".lab.lm"]
INTEGRATIONS = [
    path.stem
    for path in (ROOT / "src" / "entryclip" / "integrations").iterdir()
    if path.stem != "__init__" and (path.suffix == ".py" or (path / "__init__.py").exists())
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built once for all processes of the tests."""
    shared = tmp_path_factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in __import__("os").environ else None
    folder = (shared or tmp_path_factory.mktemp("built")) / "site"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            build(folder)
    return folder


def build(folder):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


class Addresses(HTMLParser):
    """The ids of a page, and the addresses that a browser loads by itself."""

    def __init__(self, page):
        super().__init__()
        self.ids, self.loaded = set(), set()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids.add(found.get("id"))
        if tag in ("script", "img", "iframe", "source") or (tag == "link" and found.get("rel") in ("stylesheet", "icon")):
            self.loaded.add(found.get("src") or found.get("href") or "")


def pages(site):
    return sorted(site.rglob("*.html"))


def documented(site):
    return set().union(*(Addresses(page).ids for page in pages(site / "reference")))


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_in_the_reference(site, package):
    module = importlib.import_module(f"entryclip{package}")
    found = documented(site)
    missing = [name for name in module.__all__ if not {f"{module.__name__}.{name}", anchor_of(module, name)} & found]
    assert missing == [], f"add them to docs/reference: ::: {module.__name__}.NAME"


def anchor_of(module, name):
    """The anchor of a name that is also a module's, as `optim.build` is: there the reference names the function in it."""
    return f"{module.__name__}.{name}.{name}" if module.__name__ != "entryclip.diagnostics" else getattr(module, name).__module__ + f".{name}"


@pytest.mark.parametrize("module", INTEGRATIONS)
def test_every_integration_is_in_the_reference(site, module):
    assert any(str(found).startswith(f"entryclip.integrations.{module}.") for found in documented(site))


def test_pages_load_nothing_from_other_hosts(site):
    assert len(pages(site)) > 25
    for page in pages(site):
        loaded = Addresses(page).loaded
        assert loaded, page
        assert [address for address in loaded if re.match(r"(https?:)?//", address)] == [], page


def test_figures_and_linked_files_are_on_the_site(site):
    for page in pages(site):
        for address in Addresses(page).loaded:
            target = (page.parent / address.split("?")[0]).resolve()
            assert target.is_file() or address.startswith(("/", "data:")), f"{page.name}: {address}"
    assert 'src="results/regression/speedup.svg"' in (site / "regression.html").read_text()
    assert "CONTRIBUTING.html#a-new-study" in (site / "studies.html").read_text()
    assert (site / "CONTRIBUTING.html").is_file()


def test_arguments_are_a_list_and_examples_are_code(site):
    page = (site / "reference" / "matrix.html").read_text()
    assert re.search(r"<li>\s*(<p>)?<strong><code>nonzero</code></strong> rank only", page)
    assert "<blockquote>" not in page


@contextlib.contextmanager
def served(folder):
    handler = functools.partial(SimpleHTTPRequestHandler, directory=folder)
    handler.log_message = lambda *_: None
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Quiet", (SimpleHTTPRequestHandler,), {
        "__init__": lambda self, *a, **k: SimpleHTTPRequestHandler.__init__(self, *a, directory=folder, **k),
        "log_message": lambda self, *a: None,
    }))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
