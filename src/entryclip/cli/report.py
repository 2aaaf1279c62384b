"""`entryclip report`."""

from pathlib import Path

from .options import Folder
from .terminal import say


def report(results: Folder = Path("out"), /) -> int:
    """Write one self-contained page about the results in a folder.

    Args:
        results: the folder that the other commands wrote to
    """
    from ..lab.report import write_page

    say(f"report: {write_page(results)}")
    return 0
