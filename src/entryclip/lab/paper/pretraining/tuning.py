"""The runs that were tuned with, from the rows."""

import math
from collections.abc import Iterable
from typing import Any

from .search import Trial


def trials_of(method: str, rows: Iterable[dict[str, Any]]) -> list[Trial]:
    """The finished runs of a method's tuning."""
    last = [row for row in rows if row["stage"] == "tuning" and row["method"] == method and row["last"]]
    losses = [math.inf if row["val_loss"] is None else row["val_loss"] for row in last]
    return [Trial(row["lr"], row["level"], loss) for row, loss in zip(last, losses, strict=True)]
