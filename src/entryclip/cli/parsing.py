"""Parse arguments into a call of a command. An error in them is one line, where tyro prints a box of several lines."""

import functools
import io
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from typing import Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

Command = Callable[..., int]
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RULE = set("─-╰╯")  # dashes where the output is not UTF-8
_NUMBERS: dict[Any, str] = {int: "a whole number", float: "a number"}


def parse(app: tyro.extras.SubcommandApp, description: str, arguments: Sequence[str]) -> Callable[[], int]:
    """Return the call that the arguments ask for; the commands of `app` must be `deferred`.

    tyro prints its errors and exits, so the printed text is caught and turned into a ValueError. The command itself
    does not run yet, so that nothing of its own output is caught.
    """
    printed = io.StringIO()
    settings = tyro.conf.FlagCreatePairsOff, tyro.conf.UseAppendAction
    try:
        with redirect_stderr(printed):
            call: Callable[[], int] = app.cli(
                prog="entryclip", description=description, args=arguments, config=settings, registry=_registry()
            )
    except SystemExit as end:
        if end.code == 2:
            raise ValueError(one_line(printed.getvalue())) from None
        raise
    sys.stderr.write(printed.getvalue())  # warnings
    return call


def deferred(command: Command) -> Callable[..., Callable[[], int]]:
    """Return a function of the same arguments that returns the call instead of making it."""

    @functools.wraps(command)
    def later(*arguments: Any, **options: Any) -> Callable[[], int]:
        return functools.partial(command, *arguments, **options)

    return later


def one_line(box: str) -> str:
    """Return the text of a printed box without its title; semicolons replace the rules that divide it.

    >>> one_line("╭─ Title ─╮\\n│ --jobs   │\\n│   is bad │\\n│ ──────── │\\n│ see help │\\n╰─────────╯")
    '--jobs is bad; see help'
    """
    _title, *lines = [line.strip("│ ") for line in _COLOUR.sub("", box).splitlines()] or [""]
    parts = " ".join("\n" if set(line) <= _RULE else line for line in lines).split("\n")
    return "; ".join(" ".join(part.split()).rstrip(".") for part in parts if part.strip()) or "unreadable arguments"


def _registry() -> ConstructorRegistry:
    """Return a registry in which a bad number is reported as such, instead of in the words of Python's `int`."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        return _number(info.type) if info.type in _NUMBERS else None

    return registry


def _number(kind: Any) -> PrimitiveConstructorSpec[Any]:
    def read(words: list[str]) -> Any:
        try:
            return kind(words[0])
        except ValueError:
            raise ValueError(f"must be {_NUMBERS[kind]}, got {words[0]!r}") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=read,
        is_instance=lambda x: isinstance(x, kind),
        str_from_instance=lambda x: [str(x)],
    )
