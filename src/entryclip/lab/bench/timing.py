"""Times on a shared machine are noisy: run the candidates in turn, round after round, and compare medians."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch


@dataclass(frozen=True)
class Result:
    """One line of the table: a ratio of two times, and what it should be."""

    name: str
    ratio: float
    limit: float | None  # None: a measurement that nothing is promised of
    at_least: bool  # the ratio is a speedup that should be at least the limit; else a cost that should be at most that
    detail: str

    @property
    def kept(self) -> bool:
        """Tell whether the limit is kept, if there is one."""
        if self.limit is None:
            return True
        return self.ratio >= self.limit if self.at_least else self.ratio <= self.limit


def side_by_side(
    candidates: dict[str, Callable[[], Any]], rounds: int = 15, warm_up: int = 1, device: str = "cpu"
) -> dict[str, float]:
    """Return the median seconds of each candidate, called once per round in turn, after `warm_up` calls.

    On a device each call is waited for, so that its work is timed and not its launch.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for function in candidates.values():
        for _ in range(warm_up):
            function()
    for _ in range(rounds):
        for name, function in candidates.items():
            synchronize(device)
            start = time.perf_counter()
            function()
            synchronize(device)
            times[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in times.items()}


def synchronize(device: str) -> None:
    """Wait until a device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def milliseconds(seconds: float) -> str:
    """Write a time for a table.

    >>> milliseconds(0.0123456)
    '12.3 ms'
    """
    return f"{1e3 * seconds:.3g} ms"


def cost(name: str, ours: float, theirs: float, limit: float) -> Result:
    """Return the line of a cost: our time over theirs, which should be at most the limit."""
    return Result(name, ours / theirs, limit, False, f"{milliseconds(ours)} against {milliseconds(theirs)}")


def gain(name: str, ours: float, theirs: float, limit: float) -> Result:
    """Return the line of a speedup: their time over ours, which should be at least the limit."""
    return Result(name, theirs / ours, limit, True, f"{milliseconds(ours)} against {milliseconds(theirs)}")


def measured(name: str, ours: float, theirs: float) -> Result:
    """Return the line of our time over theirs, without a limit."""
    return Result(name, ours / theirs, None, False, f"{milliseconds(ours)} against {milliseconds(theirs)}")
