"""What Ctrl-C and SIGTERM do to a command: one line, a code of 128 + the signal's number, and clean-up in between."""

import contextlib
import enum
import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STANDARD_ERROR = 2


class Stopped(BaseException):
    """Raised in the main thread when a signal asks the command to end; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Phase(enum.Enum):
    STARTING = enum.auto()  # packages are imported, nothing has to be cleaned up: a signal ends a process of its own
    RUNNING = enum.auto()  # a signal raises `Stopped`
    ENDING = enum.auto()  # the command is over: a signal changes nothing


class Stops:
    """Answers Ctrl-C and SIGTERM inside a `with` block, from the start of a command to its end.

    message      printed when a signal comes while the command is starting. An exception would not do there: some
                 packages catch whatever is raised while they are imported.
    until_exit   whether the process is there for this command alone and ends after the block: signals are ignored then

    Once `Stopped` is raised, further signals do not interrupt the clean-up. Where it was lost, because the signal came
    in a place from which Python lets no exception through, such as a finalizer, the next signal raises it again.
    """

    def __init__(self, message: str, *, until_exit: bool) -> None:
        self._message, self._until_exit, self._phase = message, until_exit, _Phase.STARTING
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        with contextlib.suppress(ValueError):  # only the main thread may set handlers: leave the caller's alone
            self._before = {number: signal.signal(number, self._answer) for number in SIGNALS}
        return self

    def started(self) -> None:
        """Raise `Stopped` from now on."""
        self._phase = _Phase.RUNNING

    def ended(self) -> None:
        """Ignore signals from now on."""
        self._phase = _Phase.ENDING

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.ended()
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self._until_exit else handler)

    def _answer(self, number: int, _: FrameType | None) -> None:
        if self._phase is _Phase.STARTING and self._until_exit:
            os.write(_STANDARD_ERROR, f"{self._message}\n".encode())
            os._exit(128 + number)
        if self._phase is not _Phase.ENDING and not _is_stopping(sys.exception()):
            raise Stopped(number)


def _is_stopping(error: BaseException | None) -> bool:
    """Whether a `Stopped` is being handled: it is the current exception, or one that this one came after."""
    while error is not None and not isinstance(error, Stopped):
        error = error.__context__
    return error is not None
