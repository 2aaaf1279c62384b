"""What the paper says of the noise of real gradients, and what was measured.

With several runs a claim about the noise holds where it holds in each of them.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from scipy import stats

from ...engine.study import Claim, Row
from ..intervals import Interval, student_interval
from ..lm_methods import METHOD_NAMES
from ..paired_claims import PairedClaim, common_differences, judge
from .runs import Stages, by_run

ArmLosses = dict[str, dict[int, float]]  # by arm and seed
_SURE = 0.01  # p-value of a sign test
_NEARLY_ALL = 0.9
_NO_GAIN, _WORTH = 1.02, 1.1  # of the best clip: the bounds of the study of scales


def claims(rows: Sequence[Row]) -> list[Claim]:
    """The paper's claims about R-hat, correlation and tails; the noise without scales; then where clipping helps."""
    gaussian = rho_of_gaussian(rows)
    runs = {seed: _of_one_run(stages, gaussian) for seed, stages in by_run(rows).items()}
    together = [_in_every_run(list(runs), each) for each in zip(*runs.values(), strict=True)]
    return [*together, *_clipping(rows)]


def _of_one_run(stages: Stages, gaussian: dict[tuple[int, int], tuple[float, float]]) -> list[Claim]:
    return [*_localization(stages), *_spectrum(stages, gaussian), *_tails(stages), *_standardized(stages)]


def _in_every_run(seeds: Sequence[int], found: Sequence[Claim]) -> Claim:
    """One claim from those of all runs: it holds where each of them does."""
    if len(found) == 1:
        return found[0]
    measured = "; ".join(f"run {seed}: {each.measured}" for seed, each in zip(seeds, found, strict=True))
    return Claim(found[0].claim, measured, all(each.holds for each in found))


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


def _standardized(stages: Stages) -> list[Claim]:
    """What is left of it with the scales of rows and columns divided out; nothing for rows that lack them."""
    every = [row for those in stages.values() for row in those.values() if row.get("standardized_gain")]
    if not every:
        return []
    raw, own = ([row[key] for row in every] for key in ("raw_gain", "standardized_gain"))
    often = [row["standardized_spiked"] > 0.1 for row in every]
    late = [row for row in every if row["step"] == max(stages) and row["standardized_r_hat"]]
    above = [row["standardized_r_hat"][0] > row["standardized_high"][0] for row in late]
    return [
        Claim(
            f"As they are, a clip would gain more than {_WORTH:g} on most matrices",
            _gains(raw),
            float(np.median(raw)) > _WORTH,
        ),
        Claim(
            f"With the scales of rows and columns divided out, the median gain is at most {_NO_GAIN:g}",
            _gains(own),
            float(np.median(own)) <= _NO_GAIN,
        ),
        Claim(
            "Single entries drive sigma_1 of the standardised noise",
            f"in more than 10 % of the samples in {_of(often)} (matrices at a stage), at most in "
            f"{max(row['standardized_spiked'] for row in every):.1%} of the samples of one",
            np.mean(often) > 0.5,
        ),
        Claim(
            f"Late in training (step {max(stages)}) R-hat is above that of Gaussian noise with the same scales",
            f"{_of(above)} above the band, median {_median(row['standardized_r_hat'][0] for row in late)}",
            np.mean(above) > 0.5,
        ),
    ]


def _gains(gains: Sequence[float]) -> str:
    largest = f"90 % {np.quantile(gains, 0.9):.3g}, largest {max(gains):.3g}"
    return f"median {np.median(gains):.3g}, {largest}; above {_WORTH:g} in {_of([gain > _WORTH for gain in gains])}"


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
