"""Rows with named and typed fields: studies measure, draw and judge these, and save them as plain dictionaries."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Self

from ..engine.study import Row


@dataclass(frozen=True, kw_only=True)
class TypedRow:
    """Base class of a study's rows. Subclasses are frozen dataclasses; their fields, in order, are the row's keys.

    A study with several kinds of rows gives each kind a subclass whose field `kind` has that kind as its default.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Error(TypedRow):
    ...     kind: str = "error"
    ...     method: str
    ...     mse: float
    >>> row = Error(method="hard", mse=0.5).to_row()
    >>> row
    {'kind': 'error', 'method': 'hard', 'mse': 0.5}
    >>> Error.from_rows([row, {"kind": "curve", "y": 1.0}]) == [Error(method="hard", mse=0.5)]
    True
    """

    def to_row(self) -> Row:
        """The row as a dictionary, for the file of rows."""
        return dict(vars(self))

    @classmethod
    def from_rows(cls, rows: Sequence[Row]) -> list[Self]:
        """Read the `rows` that have this class's defaults, such as its `kind`; all rows where it has no defaults."""
        fixed = {field.name: field.default for field in fields(cls) if field.default is not MISSING}
        return [cls(**row) for row in rows if fixed.items() <= row.items()]
