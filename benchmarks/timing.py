"""Times on a shared machine are noisy: run the candidates in turn, round after round, and compare medians."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Result:
    """One line of the table: a ratio of two times, and what it should be."""

    name: str
    ratio: float
    limit: float
    at_least: bool  # the ratio is a speedup that should be at least the limit; else a cost that should be at most that
    detail: str

    @property
    def kept(self) -> bool:
        return self.ratio >= self.limit if self.at_least else self.ratio <= self.limit


def side_by_side(candidates: dict[str, Callable[[], Any]], rounds: int = 15, warm_up: int = 1) -> dict[str, float]:
    """Median seconds of each candidate, called once per round in turn, after `warm_up` calls."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for function in candidates.values():
        for _ in range(warm_up):
            function()
    for _ in range(rounds):
        for name, function in candidates.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in times.items()}


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
