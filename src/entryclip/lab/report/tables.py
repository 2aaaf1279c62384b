"""Rows as a table of the page: cells that show a short number and sort by the whole one."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..engine.study import Row

SHOWN = 200  # rows of a table; all of them are in rows.jsonl


class Cell(NamedTuple):
    """How a value looks, what it sorts by, and whether that is a number."""

    text: str
    value: str
    number: bool


class Table(NamedTuple):
    """A caption, the columns of all rows, and the cells."""

    caption: str
    columns: list[str]
    rows: list[list[Cell]]


def make_table(caption: str, rows: Sequence[Row], count: int | None = None) -> Table:
    """A table of the first rows; where they are fewer than `count` (as many as given), the caption says so."""
    count = len(rows) if count is None else count
    columns = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    shown = [[_cell(row.get(column)) for column in columns] for row in rows[:SHOWN]]
    cut = f"The first {len(shown)} of {count:,} rows. " if count > len(shown) else ""
    return Table(cut + caption, columns, shown)


def _cell(value: Any) -> Cell:
    if isinstance(value, list):
        value = f"{len(value)} values"
    if value is None:
        return Cell("\N{EN DASH}", "", False)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return Cell(f"{value:.4g}" if isinstance(value, float) else str(value), str(value), number)
