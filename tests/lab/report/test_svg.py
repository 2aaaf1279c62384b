import re

import pytest

from entryclip.lab.report.svg import in_the_dark, inline

HOSTILE = """<?xml version="1.0"?>
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 9 9" onload="alert(1)">
<script>alert(2)</script><style>* { fill: url(http://evil) }</style>
<foreignObject><body xmlns="http://www.w3.org/1999/xhtml"><img src="x" onerror="alert(3)"/></body></foreignObject>
<a xlink:href="javascript:alert(4)"><path d="M 0 0"/></a><animate attributeName="href" to="javascript:alert(5)"/>
<use xlink:href="http://evil/#x"/><use href="data:image/svg+xml,evil"/><image href="javascript:alert(6)"/>
<image href="data:image/svg+xml;base64,PHN2Zz4="/><path style="fill: url(http://evil); stroke: #ff0000"/>
<path style="fill: expression(evil()); stroke: \\75rl(evil)"/><path clip-path="url(evil.svg#x)" d="M 1 1"/>
<path id="a" clip-path="url(#clip)" style="fill: none"/><use xlink:href="#a"/><text>words &lt;b&gt;</text>
</svg>"""


@pytest.fixture
def figure(tmp_path):
    def write(text):
        (tmp_path / "figure.svg").write_text(text)
        return tmp_path / "figure.svg"

    return write


def test_nothing_that_could_run_or_load_comes_through(figure):
    markup, colours = inline(figure(HOSTILE), "p")
    for word in ("alert", "evil", "script", "onload", "foreignObject", "animate", "http", "data:", "<a", "<style"):
        assert word not in markup
    assert "words &lt;b&gt;" in markup
    assert colours == {"#000000", "#ff0000"}


def test_ids_are_the_figures_own_and_colours_the_pages(figure):
    markup, _ = inline(figure(HOSTILE), "p")
    assert 'id="p-a"' in markup
    assert 'href="#p-a"' in markup
    assert 'clip-path="url(#p-clip)"' in markup
    assert "stroke:var(--cff0000)" in markup


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colour", ["#000000", "#1f5fa8", "#c8352b", "#2f8f5b", "#8a6d1c", "#555555", "#440154"])
def test_what_is_read_on_white_is_read_on_dark(colour):
    """A contrast of 3, as the WCAG asks of lines in figures."""
    page = luminance(in_the_dark("#ffffff"))
    assert (luminance(in_the_dark(colour)) + 0.05) / (page + 0.05) >= 3
    assert re.fullmatch("#[0-9a-f]{6}", in_the_dark(colour))


def test_what_stands_on_a_heatmap_keeps_its_colours(figure):
    groups = '<g id="{}"><g style="fill: #ffffff"/><path style="stroke: #123456"/></g>'
    text = f'<svg xmlns="http://www.w3.org/2000/svg">{groups.format("keep-colours-1")}{groups.format("text_2")}</svg>'
    markup, colours = inline(figure(text), "p")
    kept, recoloured = markup.split("p-text_2")
    assert 'fill="#000000"' in kept  # matplotlib leaves out what is black
    assert "fill:#ffffff" in kept
    assert "stroke:#123456" in kept
    assert "fill:var(--cffffff)" in recoloured
    assert colours == {"#000000", "#ffffff", "#123456"}
