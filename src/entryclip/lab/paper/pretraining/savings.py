"""Tokens saved: how many fewer a method needs to reach the final loss of another, with intervals over seeds.

saving = 1 - tokens to reach l0 / tokens of the baseline's run, where l0 is the baseline's mean final loss and the
tokens are read off the method's mean curve, linearly between evaluations. Seeds are paired: both methods saw the same
batches from the same weights. The interval resamples seeds, those of l0 with them. With few seeds it is too narrow
(about 75 % with three, 83 % with five), so it describes and decides nothing: claims go by `difference`.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...engine.study import Row
from ..intervals import LEVEL, Interval, student_interval

Array = NDArray[np.float64]
_DRAWS = 2000


class Curves(NamedTuple):
    """The validation losses (seeds, evaluations) of a tuned method; NaN where a run had diverged."""

    seeds: list[int]
    tokens: Array
    losses: Array
    seconds: Array  # of the whole run, by seed

    @property
    def final(self) -> Array:
        """The final losses, by seed."""
        return self.losses[:, -1]


def curves(rows: Iterable[Row]) -> dict[str, Curves]:
    """The curves of every method that has reported runs, in the order of the rows."""
    runs: dict[str, dict[int, list[Row]]] = {}
    for row in rows:
        if row["stage"] == "report":
            runs.setdefault(row["method"], {}).setdefault(row["seed"], []).append(row)
    return {method: _curves(of_method) for method, of_method in runs.items()}


def _curves(runs: dict[int, list[Row]]) -> Curves:
    tokens = sorted({row["tokens"] for rows in runs.values() for row in rows if row["val_loss"] is not None})
    place = {each: i for i, each in enumerate(tokens)}
    losses = np.full((len(runs), len(tokens)), np.nan)
    for i, rows in enumerate(runs.values()):
        for row in rows:
            if row["val_loss"] is not None:
                losses[i, place[row["tokens"]]] = row["val_loss"]
    ends = [rows[-1] for rows in runs.values()]
    if all(row["val_loss"] is None for row in ends):  # no run came to its end: the last losses are no final ones
        tokens.append(max(row["tokens"] for row in ends))
        losses = np.column_stack([losses, np.full(len(runs), np.nan)])
    seconds = np.array([rows[-1]["seconds"] for rows in runs.values()])
    return Curves(list(runs), np.array(tokens, float), losses, seconds)


def crossing(tokens: Array, curve: Array, level: float) -> float:
    """The tokens at which a curve first falls to `level`; inf if it never does.

    >>> crossing(np.array([0.0, 10.0, 20.0]), np.array([4.0, 3.0, 2.0]), 2.5)
    15.0
    """
    below = np.flatnonzero(curve <= level)
    if not below.size:
        return math.inf
    i = int(below[0])
    if i == 0:
        return float(tokens[0])
    share = (curve[i - 1] - level) / (curve[i - 1] - curve[i])
    return float(tokens[i - 1] + share * (tokens[i] - tokens[i - 1]))


def restricted(found: Mapping[str, Curves]) -> dict[str, Curves]:
    """The curves of several methods over the seeds that all of them have; empty where there are none."""
    common = set.intersection(*(set(each.seeds) for each in found.values())) if found else set()
    return {name: _chosen(each, common) for name, each in found.items()} if common else {}


def _chosen(each: Curves, seeds: set[int]) -> Curves:
    places = [i for i, seed in enumerate(each.seeds) if seed in seeds]
    return Curves([each.seeds[i] for i in places], each.tokens, each.losses[places], each.seconds[places])


def saving(baseline: Curves, method: Curves) -> Interval:
    """The share of the baseline's tokens that the method saves.

    It is -inf where the baseline's final loss is not reached or the method diverged, and NaN where the baseline
    diverged: then there is no loss to reach.
    """
    ours, theirs = _common(baseline, method)

    def share_saved(chosen: NDArray[np.int_]) -> float:
        level, curve = float(baseline.final[ours[chosen]].mean()), method.losses[theirs[chosen]].mean(0)
        if math.isnan(level):
            return math.nan
        return -math.inf if math.isnan(curve[-1]) else 1 - crossing(method.tokens, curve, level) / baseline.tokens[-1]

    count = len(ours)
    draws = np.random.default_rng(0).integers(count, size=(_DRAWS, count))
    found = np.array([share_saved(chosen) for chosen in draws])
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(found, [tail, 1 - tail], method="nearest")
    return Interval(share_saved(np.arange(count)), float(low), float(high))


def difference(baseline: Curves, method: Curves) -> Interval:
    """Mean final loss of the method less the baseline's, over the seeds both have: Student's interval of the pairs."""
    return student_interval(differences(baseline, method))


def differences(baseline: Curves, method: Curves) -> Array:
    """Final losses of the method less the baseline's, for the seeds both have."""
    ours, theirs = _common(baseline, method)
    return method.final[theirs] - baseline.final[ours]


def _common(a: Curves, b: Curves) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
    """The indices, in `a` and in `b`, of the seeds that both have."""
    common = [seed for seed in a.seeds if seed in b.seeds]
    if not common:
        raise ValueError(f"no seed in common: {a.seeds} and {b.seeds}")
    return np.array([a.seeds.index(seed) for seed in common]), np.array([b.seeds.index(seed) for seed in common])
