"""A hook of mkdocs: the pages link to each other as files of the repository, and the site follows these links.

A page under docs/ may link to a file outside of it, such as a figure in `../results/`. On the site, docs/ is the root,
and every file that a page links to stands at its path in the repository: `../results/spike/spike.svg` becomes
`results/spike/spike.svg`. A linked Python file becomes a page that shows its code.
"""

import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^()\s:#]+)(#[^()\s]+)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside docs/ that pages link to, and the pages outside docs/ that the navigation names."""
    waiting = [file.src_uri for file in files.documentation_pages()] + ["CHANGELOG.md", "CONTRIBUTING.md"]
    seen: set[str] = set()
    while waiting:
        uri = waiting.pop()
        if uri in seen:
            continue
        seen.add(uri)
        if uri not in files.src_uris:
            files.append(_outside(uri, config))
        if uri.endswith(".md") and not _is_code(uri):
            found = LINK.findall(_source(uri).read_text(encoding="utf-8"))
            waiting += [linked for target, _ in found if (linked := _linked(uri, target))]
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the site's paths, and take out the marks that only tests and the tables' writer read."""
    uri = page.file.src_uri

    def follow(match: re.Match[str]) -> str:
        target, anchor = match.groups(default="")
        linked = _linked(uri, target)
        return f"]({os.path.relpath(linked, posixpath.dirname(uri) or '.')}{anchor})" if linked else match[0]

    markdown = re.sub(r"^```python (continued|notest)$", "```python", markdown, flags=re.MULTILINE)
    markdown = re.sub(r"^<!-- /?\w+ -->\n", "", markdown, flags=re.MULTILINE)
    return LINK.sub(follow, markdown)


def _source(uri: str) -> Path:
    """Return the file in the repository that stands at a path of the site."""
    inside = ROOT / "docs" / uri
    return inside if inside.exists() else ROOT / (uri.removesuffix(".md") if _is_code(uri) else uri)


def _linked(uri: str, target: str) -> str | None:
    """Return the path on the site of a file that the page at `uri` links to, or None if there is no such file."""
    path = (_source(uri).parent / target).resolve()
    if not path.is_file() or not path.is_relative_to(ROOT):
        return None
    inside = ROOT / "docs"
    linked = path.relative_to(inside if path.is_relative_to(inside) else ROOT).as_posix()
    return f"{linked}.md" if linked.endswith(".py") else linked


def _is_code(uri: str) -> bool:
    """Return whether the page at `uri` shows a Python file."""
    return uri.endswith(".py.md")


def _outside(uri: str, config: MkDocsConfig) -> File:
    """Return a file of the site that is read from outside docs/; a page of code is reached by links alone."""
    source = _source(uri)
    if not _is_code(uri):
        return File.generated(config, uri, abs_src_path=str(source))
    content = f"# {source.name}\n\n```python\n{source.read_text(encoding='utf-8')}```\n"
    return File.generated(config, uri, content=content, inclusion=InclusionLevel.NOT_IN_NAV)
