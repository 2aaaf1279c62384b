"""Signals: Ctrl-C and SIGTERM end the work in an orderly way."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Stopped(BaseException):
    """A signal has asked us to end."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def orderly() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the work in an orderly way: `Stopped` rises through it."""

    def stop(number: int, _: FrameType | None) -> Any:
        signal.signal(number, signal.SIG_IGN)  # once is enough; a second one must not break the tidying
        raise Stopped(number)

    try:
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: the caller's signals are the caller's
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
