"""Values of a config's fields, as they are typed: `steps=100,300 rates=0.1:0.2,0.3`."""

import types
import typing
from collections.abc import Sequence
from typing import Any

from .study import Study

FieldValues = dict[str, Any]  # a value for each of some fields
Grid = dict[str, list[Any]]  # the values of each field
_KINDS = {int: "a whole number", float: "a number"}


def grid(study: Study[Any], texts: Sequence[str]) -> Grid:
    """Read `field=v1,v2` for each field, as values of the field's type; colons join a field of several values."""
    fields = typing.get_type_hints(study.config)
    found: Grid = {}
    for text in texts:
        field, values = _split(text, fields)
        if field not in fields:
            raise ValueError(f"{study.name} has no field {field!r}: choose from {', '.join(fields)}")
        if field in found:
            raise ValueError(f"field {field!r} is given twice: put all its values behind one, {field}=v1,v2")
        found[field] = [_value(field, value, fields[field]) for value in values.split(",")]
        if len({repr(value) for value in found[field]}) != len(found[field]):
            raise ValueError(f"{text!r} has the same value twice")
    if not found:
        raise ValueError(f"nothing to sweep over: give --over field=v1,v2 with a field of {', '.join(fields)}")
    return found


def single_values(study: Study[Any], texts: Sequence[str]) -> FieldValues:
    """Read `field=value` for each field; none at all are allowed."""
    values = grid(study, texts) if texts else {}
    for field, several in values.items():
        if len(several) > 1:
            raise ValueError(f"--set takes one value for {field}, got {len(several)}; `entryclip sweep` takes several")
    return {field: value for field, (value,) in values.items()}


def typed(value: Any) -> str:
    """A value as `grid` reads it: tuples and lists joined by colons, those inside them by slashes; empty ones are none.

    >>> typed((0.1, 0.2)), typed(((32, 128), (64, 256))), typed(None), typed(()), typed(3)
    ('0.1:0.2', '32/128:64/256', 'none', 'none', '3')
    """
    if isinstance(value, list | tuple):
        parts = ["/".join(map(str, each)) if isinstance(each, list | tuple) else str(each) for each in value]
        return ":".join(parts) or "none"
    return "none" if value is None else str(value)


def _split(text: str, fields: typing.Iterable[str]) -> tuple[str, str]:
    field, equals, values = text.partition("=")
    if not equals or not values:
        raise ValueError(f"{text!r} is not of the form field=value,value with a field of {', '.join(fields)}")
    return field, values


def _value(field: str, text: str, kind: Any) -> Any:
    """`text` as a value of type `kind`: a number, true or false, text, one of a choice, or several joined by colons.

    >>> _value("sizes", "32/128:64/256", tuple[tuple[int, int], ...])
    ((32, 128), (64, 256))
    """
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        if type(None) in arguments and text == "none":
            return None
        return _value(field, text, next(each for each in arguments if each is not type(None)))
    if typing.get_origin(kind) is tuple:
        if arguments[-1] is Ellipsis:
            return () if text == "none" else tuple(_value(field, part, arguments[0]) for part in text.split(":"))
        parts = text.split("/")
        if len(parts) != len(arguments):
            raise ValueError(f"{field} = {text!r} is not {len(arguments)} values joined by slashes")
        return tuple(_value(field, part, each) for part, each in zip(parts, arguments, strict=True))
    if typing.get_origin(kind) is typing.Literal or kind is bool:
        choices = {str(each).lower(): each for each in (arguments or (True, False))}
        if text.lower() not in choices:
            raise ValueError(f"{field} = {text!r} is not one of {', '.join(choices)}")
        return choices[text.lower()]
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{field} = {text!r} is not {_KINDS.get(kind, kind)}") from None
