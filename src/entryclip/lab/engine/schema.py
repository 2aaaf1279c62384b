"""Checks of files that others may have given us, before anything in them is used.

A schema is a function of a value and of the name of the field it is in; it raises where the value is not as it should
be. `read_json` reads a file and `check` applies a schema to what is in it. Both raise `BadFile`, whose one line names
the file, the field and the remedy; the command line prints it and ends with code 2.

>>> check({"step": 7}, fields({"step": whole(0, 5)}), Path("run.json"), "begin anew")
Traceback (most recent call last):
...
entryclip.lab.engine.schema.BadFile: run.json is damaged: step must be a whole number from 0 to 5, got 7: begin anew
"""

import io
import json
import math
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Schema = Callable[[Any, str], None]  # of a value and the name of its field
HASH = re.compile("[0-9a-f]{64}")  # a SHA-256
_DEEPEST = 40  # lists and objects inside of each other; deeper ones are no data of ours
_SHOWN = 60  # characters of a value in a message


class BadFile(ValueError):
    """A file does not hold what it should; the message names the file, the field and the remedy."""


class _Mismatch(Exception):
    """A value is not as its schema wants it."""


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file for reading; a FIFO, on which reading would wait for ever, or a device is a `BadFile`."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BadFile(f"{path} is not a regular file: remove it")
    return open(handle, "rb")


def read_json(path: Path, remedy: str) -> Any:
    """Read a JSON file. Broken or too deeply nested JSON, and NaN, which JSON does not have, is a `BadFile`."""
    with open_regular(path) as file:
        return parse_json(file.read(), path, remedy)


def parse_json(text: bytes, path: Path, remedy: str) -> Any:
    """Parse the content of a JSON file, or one line of it, as `read_json` does."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path} is damaged: not JSON ({error}): {remedy}") from error
    if _is_deeper(value, _DEEPEST):
        raise BadFile(f"{path} is damaged: nested more than {_DEEPEST} deep: {remedy}")
    return value


def check(value: Any, schema: Schema, path: Path, remedy: str) -> None:
    """Apply a schema to the content of the file `path`."""
    try:
        schema(value, "")
    except _Mismatch as error:
        raise BadFile(f"{path} is damaged: {error}: {remedy}") from None


def require(condition: bool, field: str, expected: str, value: Any) -> None:
    """Raise, inside a schema, unless the condition holds that makes `value` of `field` what is expected."""
    if not condition:
        shown = repr(value)
        shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
        raise _Mismatch(f"{field or 'its content'} must be {expected}, got {shown}")


def anything(value: Any, field: str) -> None:
    """Accept every JSON value."""


def flag(value: Any, field: str) -> None:
    """Accept true and false."""
    require(isinstance(value, bool), field, "true or false", value)


def exactly(wanted: int) -> Schema:
    """Accept one number only, such as the version of a format."""

    def schema(value: Any, field: str) -> None:
        require(type(value) is int and value == wanted, field, str(wanted), value)

    return schema


def whole(low: int = 0, high: int = 2**53) -> Schema:
    """Accept whole numbers from `low` to `high`."""

    def schema(value: Any, field: str) -> None:
        good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        require(good, field, f"a whole number from {low} to {high}", value)

    return schema


def number(low: float = -math.inf) -> Schema:
    """Accept finite numbers of at least `low`."""
    expected = "a finite number" if low == -math.inf else f"a finite number of at least {low:g}"

    def schema(value: Any, field: str) -> None:
        good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 and value >= low
        require(good, field, expected, value)

    return schema


def text(pattern: re.Pattern[str] | None = None, expected: str = "a text") -> Schema:
    """Accept texts, or those that match a pattern as a whole."""

    def schema(value: Any, field: str) -> None:
        require(isinstance(value, str) and (pattern is None or bool(pattern.fullmatch(value))), field, expected, value)

    return schema


def sha256() -> Schema:
    """Accept a SHA-256 in hexadecimal digits."""
    return text(HASH, "a SHA-256, 64 hexadecimal digits")


def one_of(*allowed: str) -> Schema:
    """Accept some texts only."""
    return text(re.compile("|".join(map(re.escape, allowed))), f"one of {', '.join(allowed)}")


def optional(schema: Schema) -> Schema:
    """Accept null as well."""

    def found(value: Any, field: str) -> None:
        if value is not None:
            schema(value, field)

    return found


def listed(item: Schema) -> Schema:
    """Accept a list of such values."""

    def schema(value: Any, field: str) -> None:
        require(isinstance(value, list), field, "a list", value)
        for index, each in enumerate(value):
            item(each, f"{field}[{index}]")

    return schema


def by_name(item: Schema) -> Schema:
    """Accept an object with any keys whose values are such values."""

    def schema(value: Any, field: str) -> None:
        require(isinstance(value, dict), field, "an object", value)
        for key, each in value.items():
            item(each, f"{field}[{key!r:.40}]")

    return schema


def fields(needed: Mapping[str, Schema], allowed: Mapping[str, Schema] | None = None) -> Schema:
    """Accept an object that has the `needed` keys and may have the `allowed` ones; further keys are not looked at."""

    def schema(value: Any, field: str) -> None:
        require(isinstance(value, dict), field, "an object", value)
        inside = f"{field}." if field else ""
        for key, each in needed.items():
            if key not in value:
                raise _Mismatch(f"{inside}{key} is missing")
            each(value[key], inside + key)
        for key, each in (allowed or {}).items():
            if key in value:
                each(value[key], inside + key)

    return schema


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:20]} is too large")
    return value


def _is_deeper(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth + 1):
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [each for several in inner for each in several]
    return bool(level)
