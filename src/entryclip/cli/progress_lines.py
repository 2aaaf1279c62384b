"""Progress where standard output is no terminal, such as a log file: a line now and then in place of a bar."""

import time
from collections.abc import Callable

from .terminal import say

EVERY = 30.0  # seconds between two lines


class ProgressLines:
    """Prints what it is told, but at most one line in `seconds`; the first after as many seconds.

    >>> lines = ProgressLines(0.0, print)
    >>> lines(lambda: "step 1 of 2")
    step 1 of 2
    """

    def __init__(self, seconds: float | None = None, write: Callable[[str], None] = say) -> None:
        self._seconds, self._write, self._last = EVERY if seconds is None else seconds, write, time.monotonic()

    def __call__(self, line: Callable[[], str]) -> None:
        """Print the line that `line()` returns, if it is time; it is not called otherwise."""
        if time.monotonic() - self._last >= self._seconds:
            self._write(line())
            self._last = time.monotonic()
