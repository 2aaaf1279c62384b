"""What is said to the user, and what is refused."""

import sys
from collections.abc import Sequence


def say(line: str) -> None:
    """A line on standard output."""
    from rich.console import Console

    Console().print(line, soft_wrap=True, highlight=False, markup=False)


def fail(message: str, code: int = 2) -> int:
    """A line on standard error; returns the exit code."""
    sys.stderr.write(f"entryclip: {message}\n")
    return code


def check_choice(option: str, value: str, allowed: Sequence[str]) -> None:
    """Refuse a value that is not allowed."""
    if value not in allowed:
        raise ValueError(f"{option} must be one of {', '.join(allowed)}, got {value!r}")
