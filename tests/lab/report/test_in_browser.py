"""The page in a real browser: figures are drawn, tables sort, nothing fails or loads, hostile names stay text."""

import json
import shutil

import browser
import pytest

from entryclip.lab.engine.reproduce import Options, reproduce
from entryclip.lab.engine.sweep import sweep
from entryclip.lab.paper import find
from entryclip.lab.report import write_page

OPERATORS = find("operators")
pytestmark = pytest.mark.skipif(browser.PROGRAM is None, reason="Chromium is not installed: apt-get install chromium")

HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
TABLE = [
    {"run": HOSTILE, "loss": 10.5},
    {"run": "b", "loss": 9.0},
    {"run": "c", "loss": None},
    {"run": "d", "loss": 1e-3},
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    folder = reproduce(OPERATORS, results)
    record = json.loads((folder / "record.json").read_text())
    record["claims"][0]["claim"] = record["machine"] = HOSTILE
    (folder / "record.json").write_text(json.dumps({**record, "tables": {HOSTILE: TABLE}}))
    swept, _ = sweep(OPERATORS, {"points": [7]}, results, Options(jobs=1))
    shutil.move(swept, swept.with_name("<b onclick=1>'\"&-1"))
    return write_page(results).path


@pytest.fixture(scope="module")
def page(tmp_path_factory, path):
    with browser.browse(tmp_path_factory.mktemp("browser")) as page:
        yield page


NONE = "\N{EN DASH}"
COLUMN = "[...document.querySelectorAll('table')].find(t => t.caption).tBodies[0].rows"


def test_figures_are_drawn_in_light_and_dark(page, path):
    sizes = "[...document.querySelectorAll('figure svg')].map(s => s.getBBox()).map(b => [b.width, b.height])"
    ink = "getComputedStyle(document.querySelector('figure svg')).fill"
    seen = {}
    for dark in (False, True):
        page.open(path, dark=dark)
        assert len(page.evaluate(sizes)) == len(OPERATORS.captions)
        assert all(width > 100 and height > 100 for width, height in page.evaluate(sizes))
        seen[dark] = page.evaluate(ink), len(page.screenshot())
    assert seen[False][0] == "rgb(0, 0, 0)"
    assert seen[True][0] == "rgb(235, 235, 235)"
    assert min(size for _, size in seen.values()) > 10_000  # more than an empty page


@pytest.mark.parametrize("width", [390, 1200])
def test_every_claim_is_visible_at_any_width(page, path, width):
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
    try:
        page.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        cells = "[...document.querySelectorAll('table.claims tbody td')].map(c => c.getBoundingClientRect())"
        assert page.evaluate(f"{cells}.every(b => b.height > 0 && b.left >= 0 && b.right <= {width})")
        assert page.evaluate(f"{cells}.length") >= 4 * len(OPERATORS.captions)
        assert page.evaluate("document.querySelector('table.claims').closest('.scroll')") is None
    finally:
        page.call("Emulation.clearDeviceMetricsOverride")


def test_a_click_on_a_heading_sorts(page, path):
    page.open(path)
    values = f"[...{COLUMN}].map(r => r.cells[1].textContent)"
    assert page.evaluate(values) == ["10.5", "9", NONE, "0.001"]
    page.evaluate("[...document.querySelectorAll('table')].find(t => t.caption).id = 'sorted'")
    heading = "#sorted th:nth-child(2) button"
    page.click(heading)
    assert page.evaluate(values) == ["0.001", "9", "10.5", NONE]  # as numbers, and what diverged comes last
    page.click(heading)
    assert page.evaluate(values) == ["10.5", "9", "0.001", NONE]  # last also the other way
    page.click("#sorted th:nth-child(1) button")
    assert page.evaluate(f"[...{COLUMN}].map(r => r.cells[0].textContent)")[1:] == ["b", "c", "d"]
    assert page.evaluate("document.querySelectorAll('[aria-sort]').length") == 1


def test_hostile_names_stay_text(page, path):
    page.open(path)
    assert page.evaluate("document.title") == "entryclip: results"
    assert page.evaluate("document.querySelectorAll('img, [onerror], [onclick], script').length") == 1
    assert page.evaluate(f"{COLUMN}[0].cells[0].textContent") == HOSTILE
    assert "<b onclick=1>'\"&" in page.evaluate("document.body.textContent")


def test_nothing_fails_and_nothing_is_loaded(page, path):
    page.errors.clear()
    page.open(path)
    page.click("th button")
    assert page.errors == []
    assert page.requested() == [path.as_uri()]
    page.evaluate("console.error('heard')")
    assert len(page.errors) == 1  # the ear works


def test_a_script_that_slipped_in_would_not_run(page, path):
    """The policy of the page, should the escaping ever fail."""
    evil = path.with_name("evil.html")
    evil.write_text(path.read_text().replace("</html>", "<script>document.title = 'taken'</script>"))
    page.open(evil)
    assert page.evaluate("document.title") == "entryclip: results"
    page.errors.clear()


def test_links_lead_to_the_rows_and_sections(page, path):
    page.open(path)
    links = page.evaluate("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    files = [link for link in links if not link.startswith("#")]
    assert "operators/rows.jsonl" in files
    assert page.evaluate(
        "[...document.querySelectorAll('a')].every(a => a.hash === '' || document.getElementById("
        "decodeURIComponent(a.hash.slice(1))))"
    )
