"""Messages to the user on standard output and standard error."""

import sys
from collections.abc import Sequence

from ..lab.engine.printable import printable


def say(line: str) -> None:
    """Print a line on standard output; what is in it is text, and cannot command the terminal."""
    from rich.console import Console

    Console().print(printable(line), soft_wrap=True, highlight=False, markup=False)


def fail(message: str, code: int = 2) -> int:
    """Print a line on standard error, as text that cannot command the terminal, and return the exit code."""
    sys.stderr.write(f"entryclip: {printable(message)}\n")
    return code


def check_choice(option: str, value: str, allowed: Sequence[str]) -> None:
    """Raise a ValueError if `value` is not one of the allowed values of an option."""
    if value not in allowed:
        raise ValueError(f"{option} must be one of {', '.join(allowed)}, got {value!r}")
