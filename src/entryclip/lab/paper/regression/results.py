"""The rows by what one asks them for."""

from collections.abc import Iterable
from typing import Any

from ...engine.study import Row


class RegressionResults:
    """Rows of a run, with the best of each method over its grid."""

    def __init__(self, rows: Iterable[Row]):
        self.rows = list(rows)

    def where(self, **wanted: Any) -> list[Row]:
        """The rows with these values."""
        return [row for row in self.rows if all(row.get(key) == value for key, value in wanted.items())]

    def sizes(self) -> list[int]:
        return sorted({row["d"] for row in self.rows if row["part"] == "paper"})

    def levels(self, part: str = "paper") -> list[float]:
        """The values of alpha."""
        return sorted({row["level"] for row in self.where(part=part, noise="contamination")})

    def best(self, **wanted: Any) -> Row | None:
        """The setting and learning rate of the least median final loss; None if every run burst or there was none."""
        finite = [row for row in self.where(kind="final", **wanted) if row["loss"] is not None]
        return min(finite, key=lambda row: row["loss"]) if finite else None

    def loss(self, **wanted: Any) -> float:
        """That loss; inf where there is none."""
        row = self.best(**wanted)
        return float("inf") if row is None else row["loss"]

    def speedup(self, method: str, **wanted: Any) -> float:
        """Least median final loss without clipping over that with it, each over its own grid."""
        return self.loss(method="none", **wanted) / self.loss(method=method, **wanted)

    def spectrum(self, method: str, **wanted: Any) -> Row:
        """What the best setting of a method makes of the first gradient."""
        (row,) = self.where(kind="spectrum", part="paper", method=method, **wanted)
        return row

    def start(self, **wanted: Any) -> float:
        """The loss at the start."""
        return float(self.where(kind="curve", step=0, **wanted)[0]["loss"])


def markdown(rows: Iterable[Row]) -> str:
    """The paper's comparison as a table: least median final losses, at the first size."""
    results = RegressionResults(rows)
    d, levels = results.sizes()[0], results.levels()
    lines = [f"| d = {d}, alpha | {' | '.join(f'{a:g}' for a in levels)} |", "|---" * (len(levels) + 1) + "|"]
    for stage, name in (("post", "GD"), ("pre", "spectral GD")):
        for method, words in (("none", "no clipping"), ("hard", "hard"), ("smooth", "smooth")):
            losses = [results.loss(part="paper", stage=stage, d=d, method=method, level=a) for a in levels]
            lines.append(f"| {name}, {words} | {' | '.join(f'{loss:.3g}' for loss in losses)} |")
    return "\n".join(lines)
