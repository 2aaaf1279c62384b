"""Hostile variants of JSON files: every part of them missing, or replaced by something that does not belong there."""

import copy
import json

import pytest

from entryclip.lab.engine.files import checksum
from entryclip.lab.engine.printable import printable
from entryclip.lab.engine.schema import BadFile

VALUES = (
    None,
    True,
    -1,
    10**9,
    10**30,
    1.5,
    "",
    "../../etc/passwd",
    "/etc/passwd",
    "\x1b[2J\x07",
    [],
    {},
    [[]],
    {"a": 1},
)
DEEP = "[" * 100_000 + "]" * 100_000
BROKEN = (
    "",
    "{",
    "NaN",
    "[]",
    "7",
    '"text"',
    "null",
    "\x00",
    '{"a": NaN}',
    '{"a": 1e999}',
    DEEP,
    '{"a": ' + "9" * 5000 + "}",
)


def places(value, path=()):
    """Yield the path of every part of a JSON value; of a list only the first two elements."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value[:2]):
            yield from places(inner, (*path, index))


def variants(value):
    """Yield what was changed, and the value with one part removed or replaced."""
    for path in places(value):
        if path:
            yield f"{path} removed", _changed(value, path, remove=True)
        for hostile in VALUES:
            yield f"{path} = {hostile!r}", _changed(value, path, hostile)


def _changed(value, path, hostile=None, *, remove=False):
    if not path:
        return copy.deepcopy(hostile)
    found = copy.deepcopy(value)
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    if remove:
        del inner[path[-1]]
    else:
        inner[path[-1]] = copy.deepcopy(hostile)
    return found


def refused(path, reads):
    """Return whether `reads` refuses the file; the message must be one line that names it."""
    try:
        reads()
    except BadFile as error:
        line = printable(str(error))
        assert str(path) in line
        assert len(line) < 600
        return True
    return False


def write_plain(path, value):
    path.write_text(json.dumps(value))


def judge(path, value, reads, write=write_plain, named=None):
    """Try every variant of a JSON file and return them; a message names the file, or the path `named`."""
    changes = list(variants(value))
    for change, variant in changes:
        write(path, variant)
        try:
            refused(named or path, reads)
        except Exception as error:
            pytest.fail(f"{path.name}, {change}: {type(error).__name__}: {error}")
    return changes


def write_with_checksum(path, value):
    """Write a file with the right checksum, as one who knows the format can; without waiting for the disk."""
    seal = {"checksum": checksum(value)} if isinstance(value, dict) else {}
    path.write_text(json.dumps({**seal, **value} if seal else value))
