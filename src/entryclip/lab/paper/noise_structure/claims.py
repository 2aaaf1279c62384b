"""What the paper says of the noise of real gradients, and what was measured."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from scipy import stats

from ...engine.study import Claim, Row
from ..intervals import Interval, student_interval
from ..lm_methods import METHOD_NAMES
from ..paired_claims import PairedClaim, common_differences, judge

Stages = dict[int, dict[str, Row]]  # by step and name of the matrix
ArmLosses = dict[str, dict[int, float]]  # by arm and seed
_SURE = 0.01  # p-value of a sign test
_NEARLY_ALL = 0.9


def claims(rows: Sequence[Row]) -> list[Claim]:
    """The paper's claims about R-hat, correlation and tails; then whether R-hat says where clipping helps."""
    stages = by_stage(rows)
    return [*_localization(stages), *_spectrum(stages, rho_of_gaussian(rows)), *_tails(stages), *_clipping(rows)]


def by_stage(rows: Iterable[Row]) -> Stages:
    """The rows of all matrices that were measured, by step and name."""
    found: Stages = {}
    for row in rows:
        if row["kind"] == "matrix" and row["r_hat"]:
            found.setdefault(row["step"], {})[row["matrix"]] = row
    return found


def rho_of_gaussian(rows: Iterable[Row]) -> dict[tuple[int, int], tuple[float, float]]:
    """The 95 % band of Spearman's rho for Gaussian noise of one size, by shape of the matrix.

    The variance of rho's Fisher transform is Bonett and Wright's (2000), at as many samples as the probe had.
    """
    found = {}
    for row in rows:
        if row["kind"] == "gaussian":
            spread = 1.96 * math.sqrt((1 + row["rho"] ** 2 / 2) / max(row["samples"] - 3, 1))
            low, high = np.tanh(math.atanh(row["rho"]) + np.array([-spread, spread]))
            found[row["rows"], row["columns"]] = (float(low), float(high))
    return found


def _localization(stages: Stages) -> list[Claim]:
    """R-hat early and late in training, and along deeper directions."""
    first, last = min(stages), max(stages)
    early, late = stages[first].values(), stages[last].values()
    below = [row["r_hat"][0] < row["low"][0] for row in early]
    above = [row["r_hat"][0] > row["high"][0] for row in late]
    deepest = min(len(row["r_hat"]) for row in late)
    rising = [row["r_hat"][deepest - 1] > row["r_hat"][0] for row in late]
    beyond = [row["r_hat"][deepest - 1] > row["high"][deepest - 1] for row in late]
    return [
        Claim(
            f"Early in training (step {first}) nearly all matrices have R-hat well below 1",
            f"{_of(below)} below the band of Gaussian noise, median {_median(r['r_hat'][0] for r in early)}",
            np.mean(below) >= _NEARLY_ALL,
        ),
        _sign_test("R-hat rises with training", stages, lambda row: row["r_hat"][0]),
        Claim(
            f"Late in training (step {last}) R-hat exceeds 1 along the first direction",
            f"{_of(above)} above the band, median {_median(r['r_hat'][0] for r in late)}",
            np.mean(above) > 0.5,
        ),
        Claim(
            f"R-hat grows with k (step {last})",
            f"k = {deepest} above k = 1 in {_of(rising)}, above the band in {_of(beyond)}; medians "
            + ", ".join(_median(row["r_hat"][k] for row in late) for k in range(deepest)),
            stats.binomtest(sum(rising), len(rising), alternative="greater").pvalue < _SURE,
        ),
    ]


def _spectrum(stages: Stages, gaussian: dict[tuple[int, int], tuple[float, float]]) -> list[Claim]:
    """Whether single entries drive sigma_1, over all matrices and stages."""
    every = [row for those in stages.values() for row in those.values()]
    samples, spiked = sum(row["samples"] for row in every), sum(row["spikes"] for row in every)
    often = [row["spiked"] > 0.1 for row in every]
    raw, relative = ([row[key] for row in every if row[key] is not None] for key in ("spearman", "relative"))
    measured = [row for row in every if row["relative"] is not None]
    beyond = [row["relative"] > gaussian[row["rows"], row["columns"]][1] for row in measured]
    strong = [row["relative"] > 0.8 for row in measured]
    return [
        Claim(
            "The largest entry and sigma_1 correlate",
            f"median rho {_median(raw)}, from {min(raw):.2f} to {max(raw):.2f}",
            np.median(raw) > 0.5,
        ),
        Claim(
            "They do so in units of the sample's scale, too, as in heavy-tailed noise (rho > .8)",
            f"median rho {_median(relative)}, above .8 in {_of(strong)}, above Gaussian noise's band in {_of(beyond)}",
            np.mean(strong) > 0.5,
        ),
        Claim(
            "Single entries drive sigma_1 of the noise",
            f"one entry carries more than half of it in {spiked} of {samples} samples; in more than 10 % of the "
            f"samples in {_of(often)} (matrices at a stage)",
            np.mean(often) > 0.5,
        ),
    ]


def _tails(stages: Stages) -> list[Claim]:
    """Whether Hill's index falls with training, beside the probe's own verdict on the tail."""
    words = [
        f"step {step}: a power law in {_of([row['tail'] == 'power law' for row in those.values()])}"
        for step, those in stages.items()
    ]
    heavier = "Tails get heavier with training (Hill's index falls)"
    claim = _sign_test(heavier, stages, lambda row: row["index"], falls=True)
    return [replace(claim, measured=f"{claim.measured}; {', '.join(words)}")]


def _sign_test(claim: str, stages: Stages, value: Callable[[Row], float | None], *, falls: bool = False) -> Claim:
    """Whether a value rises (or falls) from the first stage to the last in more matrices than chance explains."""
    found = [{name: number for name, row in those.items() if (number := value(row))} for those in stages.values()]
    names = [name for name in found[0] if all(name in each for each in found)]  # measured at all stages
    moved = [found[-1][name] < found[0][name] if falls else found[-1][name] > found[0][name] for name in names]
    p = float(stats.binomtest(sum(moved), len(moved), alternative="greater").pvalue)
    medians = ", ".join(_median(each[name] for name in names) for each in found)
    steps = ", ".join(map(str, stages))
    return Claim(claim, f"so in {_of(moved)} (sign test p = {p:.2g}); medians {medians} at steps {steps}", p < _SURE)


def _clipping(rows: Sequence[Row]) -> list[Claim]:
    """Claims about final losses, tested together over the seeds that both arms have."""
    made = []
    for method, losses in final_losses(rows).items():
        name = METHOD_NAMES[method]
        if "advised" in losses:
            only = f"{name}: the clip where the probe advises it, alone, ends below the clip everywhere else"
            made.append(_pair(only, losses, "advised", "not advised"))
        else:
            made.append(_pair(f"{name}: the clip, which the probe advises nowhere, helps", losses, "all", "none"))
        upper = f"{name}: the clip on the half with the higher R-hat ends below that on the other half"
        made.append(_pair(upper, losses, "high", "low"))
    return judge(made)


def final_losses(rows: Iterable[Row]) -> dict[str, ArmLosses]:
    """The final losses of the clipped runs, by method, arm and seed; inf where a run diverged."""
    found: dict[str, ArmLosses] = {}
    for row in rows:
        if row["kind"] == "clipped":
            loss = float("inf") if row["val_loss"] is None else row["val_loss"]
            found.setdefault(row["method"], {}).setdefault(row["arm"], {})[row["seed"]] = loss
    return found


def difference(losses: ArmLosses, arm: str, other: str) -> Interval:
    """The mean final loss of an arm less that of another, over the seeds of both."""
    return student_interval(common_differences(losses[arm], losses[other]))


def _pair(claim: str, losses: ArmLosses, arm: str, other: str) -> PairedClaim:
    return PairedClaim(claim, common_differences(losses[arm], losses[other]))


def _of(flags: Sequence[bool]) -> str:
    return f"{sum(flags)} of {len(flags)}"


def _median(values: Iterable[float]) -> str:
    return f"{np.median(list(values)):.2g}"
