"""Figures inside the page: SVG with unique ids, colours for a light and a dark page, and nothing that could run.

A heatmap is an image, the same on both pages. Text on it must be so too: its `gid` begins with `KEEP_COLOURS`.
Only elements, attributes and properties known to be harmless come through; the rest is dropped.
"""

import colorsys
import re
from pathlib import Path
from xml.etree import ElementTree

from ..engine.figure_ids import KEEP_COLOURS
from ..engine.schema import BadFile, open_regular

SVG, XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
ELEMENTS = re.compile(
    "svg|g|defs|path|clipPath|rect|circle|line|polyline|polygon|use|image|text|tspan|linearGradient|stop|marker"
)
ATTRIBUTES = re.compile(
    "d|[xyr]|[xy][12]|[cr][xy]|width|height|points|transform|viewBox|preserveAspectRatio|clip-path|clip-rule|offset"
)
PROPERTIES = re.compile(
    "(fill|stroke|stop)(-(color|opacity|rule|width|linecap|linejoin|dasharray|dashoffset|miterlimit))?|opacity|clip-path"
    "|font(-(size|family|weight|style))?|text-anchor|image-rendering"
)
_VALUE = re.compile(r"url\(#[\w.-]+\)|[\w\s#.,%'+-]*")  # no function, and no url but into the figure itself
_TRANSFORM = re.compile(r"((matrix|translate|scale|rotate|skewX|skewY)\([\d\s.,e+-]*\)\s*)*")
_PREFIX = re.compile(r"[A-Za-z0-9_-]+")  # it becomes part of style attributes
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}\b")


def inline(path: Path, prefix: str) -> tuple[str, set[str]]:
    """The figure as markup whose ids start with `prefix` and whose colours are CSS variables, and those colours."""
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(f"prefix must be letters, digits, hyphens and underscores, got {prefix!r}")
    colours: set[str] = set()
    try:
        with open_regular(path) as file:
            root = ElementTree.fromstring(file.read())
        if root.tag != f"{SVG}svg":
            raise BadFile(f"{path} is not an SVG figure: run the study again")
        clean = _copy(root, prefix, colours)
    except (ElementTree.ParseError, RecursionError) as error:
        raise BadFile(f"{path} is damaged ({error}): run the study again") from error
    clean.attrib.pop("height", None)  # the page may make it narrower; viewBox keeps the shape
    clean.set("fill", f"var({variable('#000000')})")  # what has no colour of its own is black
    clean.set("aria-hidden", "true")
    return ElementTree.tostring(clean, encoding="unicode"), colours | {"#000000"}


def variable(colour: str) -> str:
    """The CSS variable of a colour: the page gives it one value in the light and another in the dark."""
    return f"--c{colour[1:].lower()}"


def in_the_dark(colour: str) -> str:
    """The colour for a dark page, with about the contrast it has on a white one: greys inverted, hues lightened.

    >>> in_the_dark("#000000"), in_the_dark("#ffffff"), in_the_dark("#1f5fa8")
    ('#ebebeb', '#1a1d21', '#619de2')
    """
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    hue, light, saturation = colorsys.rgb_to_hls(red, green, blue)
    if light > 0.99:
        return "#1a1d21"  # the background of the dark page
    light = 0.92 - 0.8 * light if saturation < 0.1 else 0.4 + 0.6 * light
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, light, saturation))


def _copy(element: ElementTree.Element, prefix: str, colours: set[str] | None) -> ElementTree.Element:
    """Copy an element without what is not known to be harmless; without `colours`, its colours stay as they are."""
    kept_group = element.get("id", "").startswith(KEEP_COLOURS)
    colours = None if kept_group else colours
    clean = ElementTree.Element(element.tag.removeprefix(SVG))
    for name, value in element.attrib.items():
        if kept := _attribute(name, value, prefix, colours):
            clean.set(*kept)
    if kept_group:
        clean.set("fill", "#000000")  # matplotlib leaves black out, which would be the page's ink
    clean.text = element.text if clean.tag in ("text", "tspan") else None
    for child in element:
        if isinstance(child.tag, str) and child.tag.startswith(SVG) and ELEMENTS.fullmatch(child.tag.removeprefix(SVG)):
            clean.append(_copy(child, prefix, colours))
    return clean


def _attribute(name: str, value: str, prefix: str, colours: set[str] | None) -> tuple[str, str] | None:
    if name in ("href", f"{XLINK}href"):
        inside = re.fullmatch(r"#[\w.-]+|data:image/png;base64,[\w+/=\s]*", value)
        return ("href", value.replace("#", f"#{prefix}-", 1)) if inside else None
    if name == "style":
        return "style", ";".join(_declarations(value, prefix, colours))
    if name == "id":
        return "id", f"{prefix}-{value}"
    harmless = ATTRIBUTES.fullmatch(name) and (_TRANSFORM if name == "transform" else _VALUE).fullmatch(value)
    return (name, value.replace("url(#", f"url(#{prefix}-")) if harmless else None


def _declarations(style: str, prefix: str, colours: set[str] | None) -> list[str]:
    kept = []
    for declaration in style.split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if PROPERTIES.fullmatch(name) and _VALUE.fullmatch(value):
            if colours is not None:
                colours |= {found.lower() for found in _COLOUR.findall(value)}
                value = _COLOUR.sub(lambda found: f"var({variable(found.group())})", value)
            kept.append(f"{name}:{value.replace('url(#', f'url(#{prefix}-')}")
    return kept
