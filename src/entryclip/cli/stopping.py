"""Turn Ctrl-C and SIGTERM into an exception, so that clean-up code runs before the command ends."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Stopped(BaseException):
    """Raised in the main thread when a signal asks the command to end; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def stops_raised() -> Iterator[None]:
    """Raise `Stopped` inside the block on Ctrl-C or SIGTERM; a second signal does not interrupt the clean-up."""

    def stop(number: int, _: FrameType | None) -> Any:
        signal.signal(number, signal.SIG_IGN)  # a second one must not interrupt the clean-up
        raise Stopped(number)

    try:
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # only the main thread may set handlers: leave the caller's alone
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
