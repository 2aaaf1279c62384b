"""What the paper says of the noise of real gradients, and what was measured."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy import stats

from ..pretraining.savings import Interval, student
from ..pretraining.verdicts import NAMES, nats

Row = dict[str, Any]
Claim = dict[str, Any]
_SURE = 0.01  # p-value of a sign test
_NEARLY_ALL = 0.9


def claims(rows: Iterable[Row]) -> list[Claim]:
    """The paper's about R-hat, tails and correlation; then about clipping here and there."""
    rows = list(rows)
    stages = by_stage(rows)
    return [*_localization(stages), *_spectrum(stages, rho_of_gaussian(rows)), *_tails(stages), *_clipping(rows)]


def by_stage(rows: Iterable[Row]) -> dict[int, dict[str, Row]]:
    """The rows of all matrices that were measured, by step and name."""
    found: dict[int, dict[str, Row]] = {}
    for row in rows:
        if row["kind"] == "matrix" and row["r_hat"]:
            found.setdefault(row["step"], {})[row["matrix"]] = row
    return found


def rho_of_gaussian(rows: Iterable[Row]) -> dict[tuple[int, int], tuple[float, float]]:
    """Where rho lies with 95 % probability for Gaussian noise of one size, by shape of the matrix.

    The variance of its transform is Bonett and Wright's (2000), at as many samples as the probe had.
    """
    found = {}
    for row in rows:
        if row["kind"] == "gaussian":
            spread = 1.96 * math.sqrt((1 + row["rho"] ** 2 / 2) / max(row["samples"] - 3, 1))
            low, high = np.tanh(math.atanh(row["rho"]) + np.array([-spread, spread]))
            found[row["rows"], row["columns"]] = (float(low), float(high))
    return found


def _localization(stages: dict[int, dict[str, Row]]) -> list[Claim]:
    first, last = min(stages), max(stages)
    early, late = stages[first].values(), stages[last].values()
    below = [row["r_hat"][0] < row["low"][0] for row in early]
    above = [row["r_hat"][0] > row["high"][0] for row in late]
    deepest = min(len(row["r_hat"]) for row in late)
    rising = [row["r_hat"][deepest - 1] > row["r_hat"][0] for row in late]
    beyond = [row["r_hat"][deepest - 1] > row["high"][deepest - 1] for row in late]
    return [
        _claim(
            f"Early in training (step {first}) nearly all matrices have R-hat well below 1",
            f"{_of(below)} below the band of Gaussian noise, median {_median(r['r_hat'][0] for r in early)}",
            np.mean(below) >= _NEARLY_ALL,
        ),
        _sign_test("R-hat rises with training", stages, lambda row: row["r_hat"][0]),
        _claim(
            f"Late in training (step {last}) R-hat exceeds 1 along the first direction",
            f"{_of(above)} above the band, median {_median(r['r_hat'][0] for r in late)}",
            np.mean(above) > 0.5,
        ),
        _claim(
            f"R-hat grows with k (step {last})",
            f"k = {deepest} above k = 1 in {_of(rising)}, above the band in {_of(beyond)}; medians "
            + ", ".join(_median(row["r_hat"][k] for row in late) for k in range(deepest)),
            stats.binomtest(sum(rising), len(rising), alternative="greater").pvalue < _SURE,
        ),
    ]


def _spectrum(stages: dict[int, dict[str, Row]], gaussian: dict[tuple[int, int], tuple[float, float]]) -> list[Claim]:
    every = [row for those in stages.values() for row in those.values()]
    samples, spiked = sum(row["samples"] for row in every), sum(row["spikes"] for row in every)
    often = [row["spiked"] > 0.1 for row in every]
    raw, relative = ([row[key] for row in every if row[key] is not None] for key in ("spearman", "relative"))
    measured = [row for row in every if row["relative"] is not None]
    beyond = [row["relative"] > gaussian[row["rows"], row["columns"]][1] for row in measured]
    strong = [row["relative"] > 0.8 for row in measured]
    return [
        _claim(
            "The largest entry and sigma_1 correlate",
            f"median rho {_median(raw)}, from {min(raw):.2f} to {max(raw):.2f}",
            np.median(raw) > 0.5,
        ),
        _claim(
            "They do so in units of the sample's scale, too, as in heavy-tailed noise (rho > .8)",
            f"median rho {_median(relative)}, above .8 in {_of(strong)}, above Gaussian noise's band in {_of(beyond)}",
            np.mean(strong) > 0.5,
        ),
        _claim(
            "Single entries drive sigma_1 of the noise",
            f"one entry carries more than half of it in {spiked} of {samples} samples; in more than 10 % of the "
            f"samples in {_of(often)} (matrices at a stage)",
            np.mean(often) > 0.5,
        ),
    ]


def _tails(stages: dict[int, dict[str, Row]]) -> list[Claim]:
    """Hill's index where the probe has one; its verdict is told beside."""
    words = [
        f"step {step}: a power law in {_of([row['tail'] == 'power law' for row in those.values()])}"
        for step, those in stages.items()
    ]
    heavier = "Tails get heavier with training (Hill's index falls)"
    claim = _sign_test(heavier, stages, lambda row: row["index"] and -row["index"], -1)
    return [{**claim, "measured": f"{claim['measured']}; {', '.join(words)}"}]


def _sign_test(claim: str, stages: dict[int, dict[str, Row]], value: Any, sign: int = 1) -> Claim:
    """Whether it is larger at the last stage than at the first in more matrices than chance would have it."""
    first, last = min(stages), max(stages)
    usable = [name for name in stages[first] if all(name in those and value(those[name]) for those in stages.values())]
    up = [value(stages[last][name]) > value(stages[first][name]) for name in usable]
    p = float(stats.binomtest(sum(up), len(up), alternative="greater").pvalue)
    medians = [_median(sign * value(those[name]) for name in usable) for those in stages.values()]
    measured = (
        f"so in {_of(up)} (sign test p = {p:.2g}); medians {', '.join(medians)} at steps {', '.join(map(str, stages))}"
    )
    return _claim(claim, measured, p < _SURE)


def _clipping(rows: Sequence[Row]) -> list[Claim]:
    made = []
    for method, losses in final_losses(rows).items():
        name = NAMES[method]
        if "advised" in losses:
            only = f"{name}: the clip where the probe advises it, alone, ends below the clip everywhere else"
            made.append(_pair(only, losses, "advised", "not advised"))
        else:
            made.append(_pair(f"{name}: the clip, which the probe advises nowhere, helps", losses, "all", "none"))
        upper = f"{name}: the clip on the half with the higher R-hat ends below that on the other half"
        made.append(_pair(upper, losses, "high", "low"))
    return made


def final_losses(rows: Iterable[Row]) -> dict[str, dict[str, dict[int, float]]]:
    """By method, arm and seed; runs that diverged are infinite."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for row in rows:
        if row["kind"] == "clipped":
            loss = float("inf") if row["val_loss"] is None else row["val_loss"]
            found.setdefault(row["method"], {}).setdefault(row["arm"], {})[row["seed"]] = loss
    return found


def difference(losses: dict[str, dict[int, float]], arm: str, other: str) -> Interval:
    """Mean final loss of an arm less another's, over the seeds of both."""
    seeds = sorted(set(losses[arm]) & set(losses[other]))
    return student(np.array([losses[arm][seed] - losses[other][seed] for seed in seeds]))


def _pair(claim: str, losses: dict[str, dict[int, float]], arm: str, other: str) -> Claim:
    found = difference(losses, arm, other)
    return _claim(claim, f"final loss {nats(found)} ({len(losses[arm])} seeds)", found.high < 0)


def _claim(claim: str, measured: str, holds: Any) -> Claim:
    return {"claim": claim, "measured": measured, "holds": bool(holds)}


def _of(flags: Sequence[bool]) -> str:
    return f"{sum(flags)} of {len(flags)}"


def _median(values: Iterable[float]) -> str:
    return f"{np.median(list(values)):.2g}"
