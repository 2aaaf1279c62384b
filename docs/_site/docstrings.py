"""An extension of Griffe: the docstrings of this package, which are plain text, as Markdown.

Two things in them mean something else in Markdown: arguments in two columns become a list, examples a block of code.
"""

import re
from typing import Any

import griffe

ROW = re.compile(r"(?P<name>\S.*?) {2,}(?P<text>\S.*)")


class PlainDocstrings(griffe.Extension):
    """Rewrites each docstring once, when its object has been read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Replace the text of an object's docstring by Markdown; a module's goes, the page has its own introduction."""
        if obj.is_module:
            obj.docstring = None
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(text: str) -> str:
    """Return a plain docstring as Markdown."""
    blocks = re.split(r"\n[ \t]*\n", text.strip("\n"))
    return "\n\n".join(_block(block.split("\n")) for block in blocks)


def _block(lines: list[str]) -> str:
    """Return one paragraph as Markdown: an example, a list of arguments, or as it is."""
    if lines[0].startswith(">>> "):
        return "\n".join(["```pycon", *lines, "```"])
    if ROW.fullmatch(lines[0]) and not lines[0].startswith(" "):
        return _list(lines)
    return "\n".join(lines)


def _list(lines: list[str]) -> str:
    """Return rows of two columns as a list; an indented line goes on with the row above it."""
    items: list[str] = []
    for line in lines:
        row = ROW.fullmatch(line)
        if row and not line.startswith(" "):
            items.append(f"- **`{row['name']}`** {row['text']}")
        elif items:
            items[-1] += f" {line.strip()}"
    return "\n".join(items)
