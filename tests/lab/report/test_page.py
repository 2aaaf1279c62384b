import base64
import dataclasses
import hashlib
import html
import json
import os
import re
import shutil
from urllib.parse import quote

import pytest

from entryclip.lab.engine.files import write_sealed
from entryclip.lab.engine.provenance import Provenance
from entryclip.lab.engine.reproduce import Options, reproduce
from entryclip.lab.engine.store import Record, save_record
from entryclip.lab.engine.study import Claim
from entryclip.lab.engine.sweep import sweep
from entryclip.lab.paper import NAMES, find
from entryclip.lab.report import write_page

OPERATORS, LEARNING_RATE = find("operators"), find("learning-rate")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Results of one study and one sweep, to be copied."""
    folder = tmp_path_factory.mktemp("made")
    reproduce(OPERATORS, folder)
    sweep(OPERATORS, {"points": [7, 9]}, folder, Options(jobs=1))
    return folder


@pytest.fixture
def results(made, tmp_path):
    return shutil.copytree(made, tmp_path / "results")


def change(folder, **fields):
    record = json.loads((folder / "record.json").read_text())
    (folder / "record.json").write_text(json.dumps({**record, **fields}))


def test_the_page_shows_what_is_there(results):
    page = write_page(results).path.read_text()
    for claim in OPERATORS.claims(list(OPERATORS.run_unit(OPERATORS.config(), {}))):
        assert claim.claim in page
    assert page.count("<svg") == page.count("<figure") == len(OPERATORS.captions)
    assert "3 of 3 claims of full studies hold" in page
    assert "Quick results" not in page
    for term in ("sigma_1", "R-hat", "alpha", "tau"):
        assert f"<dt>{term}</dt>" in page
    assert "The first 200 of 2,404 rows" in page
    assert 'href="operators/rows.jsonl"' in page
    assert f"entryclip reproduce operators --out {results}<" in page
    assert "entryclip sweep operators --over points=7,9" in page
    assert "points</dt><dd>601" in page
    assert "http" not in page.replace("http-equiv", "")  # nothing from anywhere


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ""),
        ({"quick": True}, " --quick"),
        ({"changes": {"rates": (0.5, 0.25), "seeds": 3}}, " --set rates=0.5:0.25 seeds=3"),
        ({"quick": True, "changes": {"seeds": 3}}, " --quick --set seeds=3"),
    ],
)
def test_the_command_on_the_page_asks_for_what_is_there(tmp_path, options, words):
    config = dataclasses.asdict(LEARNING_RATE.configured(**options))
    save_record(tmp_path / "learning-rate", Record("learning-rate", config, "", Provenance({}), 1.0))
    page = write_page(tmp_path).path.read_text()
    assert f"<code>entryclip reproduce learning-rate{words} --out {tmp_path}</code>" in page


def test_quick_results_say_so_and_link_the_full_ones(tmp_path):
    config = dataclasses.asdict(LEARNING_RATE.configured(quick=True))
    claim = Claim("it helps", "by 3 %", True)
    save_record(tmp_path / "learning-rate", Record("learning-rate", config, "", Provenance({}), 1.0, claims=(claim,)))
    page = write_page(tmp_path).path.read_text()
    assert "<b>Quick results.</b> 1 of 1 sections come from a quick version" in page
    assert "1 of 1 claims hold in quick versions" in page
    assert "of full studies hold" not in page
    assert page.count("olds (quick)") == 2  # in the table of all claims, and in the section
    (link,) = re.findall(r'A quick version: it decides nothing. The full study: <a href="([^"]*)">docs/', page)
    assert "entryclip reproduce learning-rate" in (tmp_path / link).resolve().read_text()


def test_what_is_missing_is_named_with_its_command(results):
    page = write_page(results).path.read_text()
    for name in NAMES:
        command = f"entryclip reproduce {name} --out {results}"
        assert (f"<li><code>{command}</code>" in page) == (name != "operators")
    other = next(name for name in NAMES if name != "operators")
    write_sealed(results / other / "units" / "a.json", {})
    write_sealed(results / other / "units" / "b.failed", {"reason": "it <b>broke</b>"})
    (results / other / "units" / "c.failed").write_text("{")
    page = write_page(results).path.read_text()
    assert "begun: 1 units are finished" in page
    assert "failed: it &lt;b&gt;broke&lt;/b&gt;" in page
    assert "c.failed is damaged" in page


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "its content must be an object"),
        ("{}", "claims is missing"),
        ("NaN", "not JSON (NaN is no JSON number)"),
    ],
)
def test_a_damaged_record_is_named(results, content, words):
    (results / "operators" / "record.json").write_text(content)
    page = write_page(results)
    (line,) = page.damaged
    assert line.startswith(f"{results / 'operators' / 'record.json'} is damaged: {words}")
    assert line in html.unescape(page.path.read_text())


DEEP = '<svg xmlns="http://www.w3.org/2000/svg">' + "<g>" * 9999 + "</g>" * 9999 + "</svg>"


@pytest.mark.parametrize("content", ["<svg", "<html/>", "", DEEP])
def test_a_damaged_figure_is_named(results, content):
    (results / "operators" / "clipping_ops.svg").write_text(content)
    (line,) = write_page(results).damaged
    assert re.search(r"clipping_ops\.svg is (damaged|not an SVG)", line)


def test_tables_of_a_study_and_numbers_as_they_are(results):
    table = [{"method": "a", "loss": 0.123456}, {"method": "b", "loss": None, "steps": 3}, {"curve": [1, 2, 3]}]
    change(results / "operators", tables={"What came out.": table})
    page = write_page(results).path.read_text()
    assert "<caption>What came out.</caption>" in page
    assert '<td class="number" data-value="0.123456">0.1235</td>' in page
    assert '<td data-value="">\N{EN DASH}</td>' in page
    assert "3 values" in page


def test_hostile_text_stays_text(results):
    hostile = "<script>alert(1)</script>"
    claim = {"claim": hostile, "measured": "", "holds": True}
    change(
        results / "operators", claims=[claim], machine=hostile, config={'"><img onerror=x>': 1}, tables={hostile: []}
    )
    page = write_page(results).path.read_text()
    assert page.count("<script") == 1  # the page's own
    assert "<img onerror" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 4


def test_bad_results_do_not_keep_the_others_from_the_page(results):
    (bad,) = (results / "sweeps").iterdir()
    change(bad, over=7)
    page = write_page(results)
    assert page.damaged == [f"{bad / 'record.json'} is damaged: over must be an object, got 7: run the study again"]
    text = page.path.read_text()
    assert "3 of 3 claims of full studies hold" in text
    assert "Sweep of" not in text


@pytest.mark.parametrize("name", ["record.json", "rows.jsonl", "clipping_ops.svg"])
def test_a_fifo_among_the_results_is_named_and_does_not_hang(results, name):
    place = results / "operators" / name
    place.unlink()
    os.mkfifo(place)
    assert write_page(results).damaged == [f"{place} is not a regular file: remove it"]


def test_a_folder_name_is_text_in_styles_ids_and_links(results):
    name = "x);} body{background:url(evil.example)} #a? 'b"
    diagnosis = shutil.copytree(results / "operators", results / "diagnoses" / name)
    shutil.copy(diagnosis / "clipping_ops.svg", diagnosis / "noise.svg")
    config = {"source": "m.py:make", "where": [], "directions": 8, "samples": 64}
    change(diagnosis, config=config, summary=["nothing to clip"])
    page = write_page(results)
    assert page.damaged == []
    text = page.path.read_text()
    assert "evil.example)}" not in text
    assert quote(f"diagnoses/{name}/rows.jsonl") in text
    identifiers = re.findall(r'(?:id="|url\(#|href="#)([^")]*)', text)
    assert len(identifiers) > 20
    assert all(re.fullmatch(r"[\w.-]+", each) for each in identifiers)


def test_the_pages_script_is_the_one_its_policy_allows(results):
    page = write_page(results).path.read_text()
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page.replace("&#39;", "'")
