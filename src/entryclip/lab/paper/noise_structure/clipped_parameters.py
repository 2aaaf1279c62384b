"""Which parameters each run clips, by what the probe found: those with the higher R-hat, the others, all or none."""

import math
from collections.abc import Iterable

import numpy as np

from ...engine.study import Row


def clipped_parameters(rows: Iterable[Row]) -> dict[str, tuple[str, ...]]:
    """The names of the parameters that are clipped, for each arm of the comparison.

    The arms are `none`, `all`, `high` and `low`, the halves by R-hat. `advised` and `not advised` are there where the
    probe advises a clip for some parameters but not for all: otherwise they would repeat `none` and `all`.
    """
    rows = [row for row in rows if row["kind"] == "matrix"]
    ratios = mean_r_hat(rows)
    ranked = sorted(ratios, key=ratios.__getitem__)
    low, high = ranked[: len(ranked) // 2], ranked[len(ranked) // 2 :]
    found = {"none": [], "all": ranked, "high": high, "low": low}
    advised = {parameter(row["matrix"]) for row in rows if row["verdict"] == "spikes"}
    if 0 < len(advised) < len(ranked):
        found |= {"advised": sorted(advised), "not advised": sorted(set(ranked) - advised)}
    return {arm: tuple(sorted(names)) for arm, names in found.items()}


def mean_r_hat(rows: Iterable[Row]) -> dict[str, float]:
    """The geometric mean of R-hat along the first direction, over stages and matrices, for each parameter."""
    logs: dict[str, list[float]] = {}
    for row in rows:
        if row["r_hat"]:
            logs.setdefault(parameter(row["matrix"]), []).append(math.log(max(row["r_hat"][0], 1e-300)))
    return {name: math.exp(np.mean(each)) for name, each in logs.items()}


def parameter(matrix: str) -> str:
    """The name of the parameter that holds a matrix: queries, keys and values share one.

    >>> parameter("blocks.1.attn.qkv_w.v"), parameter("blocks.1.mlp.c_fc.weight")
    ('blocks.1.attn.qkv_w', 'blocks.1.mlp.c_fc.weight')
    """
    whole, _, part = matrix.rpartition(".")
    return whole if part in ("q", "k", "v") else matrix
