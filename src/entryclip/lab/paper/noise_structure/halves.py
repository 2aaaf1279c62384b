"""Which parameters to clip, by what the probe found: those with the higher R-hat, and the others."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

Row = dict[str, Any]


def arms(rows: Iterable[Row]) -> dict[str, tuple[str, ...]]:
    """The parameters that each arm clips. `advised` and `not advised` are there where the probe advises some, not all.

    With advice for none of them, `advised` would be `none` and `not advised` would be `all`.
    """
    rows = [row for row in rows if row["kind"] == "matrix"]
    ranked = sorted(ratios(rows), key=ratios(rows).__getitem__)
    low, high = ranked[: len(ranked) // 2], ranked[len(ranked) // 2 :]
    found = {"none": [], "all": ranked, "high": high, "low": low}
    advised = {parameter(row["matrix"]) for row in rows if row["verdict"] == "spikes"}
    if 0 < len(advised) < len(ranked):
        found |= {"advised": sorted(advised), "not advised": sorted(set(ranked) - advised)}
    return {arm: tuple(sorted(names)) for arm, names in found.items()}


def ratios(rows: Iterable[Row]) -> dict[str, float]:
    """R-hat along the first direction for each parameter: its geometric mean over stages and matrices."""
    logs: dict[str, list[float]] = {}
    for row in rows:
        if row["r_hat"]:
            logs.setdefault(parameter(row["matrix"]), []).append(math.log(max(row["r_hat"][0], 1e-300)))
    return {name: math.exp(np.mean(each)) for name, each in logs.items()}


def parameter(matrix: str) -> str:
    """The parameter that a matrix is in.

    >>> parameter("blocks.1.attn.qkv_w.v"), parameter("blocks.1.mlp.c_fc.weight")
    ('blocks.1.attn.qkv_w', 'blocks.1.mlp.c_fc.weight')
    """
    whole, _, part = matrix.rpartition(".")
    return whole if part in ("q", "k", "v") else matrix
