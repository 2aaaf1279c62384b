"""`entryclip report`."""

from pathlib import Path

from .options import Folder
from .terminal import fail, say


def report(results: Folder = Path("out"), /) -> int:
    """Write one self-contained page about the results in a folder.

    Args:
        results: the folder that the other commands wrote to
    """
    from ..lab.report import write_page

    page = write_page(results)
    say(f"report: {page.path}")
    return max((fail(line) for line in page.damaged), default=0)
