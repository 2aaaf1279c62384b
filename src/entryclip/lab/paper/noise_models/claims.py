"""What the paper reads off its figure of noise models and its table of rates, checked on the rows."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from ...engine.study import Claim, Row
from .study import LocalizationMedians, ModelSummary, NoiseDraw


class RateLaw(NamedTuple):
    """A quantity proportional to (mn)^power log(mn)^log, for matrices m x n."""

    power: int
    log: int


# The paper's table for flat u, v (tab:localization-regimes), by noise and quantity.
RATES = {
    "Gaussian": {"r_max": RateLaw(-2, 1), "r": RateLaw(-1, 0), "ratio": RateLaw(-1, 1), "normalized": RateLaw(0, 0)},
    "spike": {"r_max": RateLaw(-1, 0), "r": RateLaw(-1, 0), "ratio": RateLaw(0, 0), "normalized": RateLaw(1, -1)},
    "aligned": {"r_max": RateLaw(-2, 0), "r": RateLaw(0, 0), "ratio": RateLaw(-2, 0), "normalized": RateLaw(-1, -1)},
}


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Check what is said of the spectrum, of single values of R-hat, and of the rates."""
    summaries = {summary.model: summary for summary in ModelSummary.from_rows(rows)}
    beyond = [draw.normalized > 10 for draw in NoiseDraw.from_rows(rows) if draw.model == "Gaussian"]
    return [
        *_of_the_spectrum(summaries),
        *_of_the_median(summaries),
        Claim(
            "a single R-hat says nothing: for Gaussian noise it exceeds 10 in about one draw of six",
            f"{np.mean(beyond):.0%} of {len(beyond)} draws",
            bool(abs(np.mean(beyond) - 0.17) < 3 * math.sqrt(0.14 / len(beyond))),
        ),
        *_of_the_rates(LocalizationMedians.from_rows(rows)),
    ]


def _of_the_spectrum(of: dict[str, ModelSummary]) -> list[Claim]:
    return [
        Claim(
            "the largest entry drives sigma_1 under heavy-tailed entries and their mixture",
            ", ".join(_correlation(of[name]) for name in ("heavy-tailed", "mixture")),
            min(of["heavy-tailed"].rho_low, of["mixture"].rho_low) > 0.8,
        ),
        Claim(
            "and not under Gaussian and low-rank noise",
            ", ".join(_correlation(of[name]) for name in ("Gaussian", "low-rank")),
            max(of["Gaussian"].rho_high, of["low-rank"].rho_high) < 0.8,
        ),
    ]


def _of_the_median(of: dict[str, ModelSummary]) -> list[Claim]:
    heavy = (of["heavy-tailed"], of["mixture"])
    return [
        Claim(
            "R-hat is near 1 for Gaussian noise and far above for heavy-tailed entries and their mixture",
            ", ".join(_median(summary) for summary in (of["Gaussian"], *heavy)),
            _inside_band(of["Gaussian"]) and all(summary.median > summary.band_high for summary in heavy),
        ),
        Claim(
            "R-hat does not tell random low-rank noise from Gaussian noise",
            _median(of["low-rank"]),
            _inside_band(of["low-rank"]),
        ),
    ]


def _of_the_rates(medians: list[LocalizationMedians]) -> list[Claim]:
    misses = [
        (noise, quantity, measured_power(medians, noise, quantity) - law.power)
        for noise, laws in RATES.items()
        for quantity, law in laws.items()
    ]
    noise, quantity, miss = max(misses, key=lambda each: abs(each[2]))
    random, flat = (_gaussian_baselines(medians, directions) for directions in ("random", "flat"))
    raised = [above / below for above, below in zip(random, flat, strict=True)]
    return [
        Claim(
            "the table's rates hold for flat directions (power of mn within .1)",
            f"farthest: {quantity} of {noise} noise, off by {miss:+.3f}",
            abs(miss) < 0.1,
        ),
        Claim(
            "the table is for flat directions: random ones raise the median of R under Gaussian noise",
            f"{min(raised):.1f} to {max(raised):.1f} times over these sizes",
            min(raised) > 2,
        ),
    ]


def measured_power(medians: Sequence[LocalizationMedians], noise: str, quantity: str) -> float:
    """Fit the power of mn in a quantity for flat directions, after dividing by the table's power of log(mn)."""
    mine = [each for each in medians if (each.noise, each.directions) == (noise, "flat")]
    size = np.array([2 * math.log(each.side) for each in mine])
    value = np.log([getattr(each, quantity) for each in mine]) - RATES[noise][quantity].log * np.log(size)
    return float(stats.linregress(size, value).slope)


def _gaussian_baselines(medians: list[LocalizationMedians], directions: str) -> list[float]:
    """The median of R under Gaussian noise at each size, by which R is divided to give R-hat."""
    mine = [each for each in medians if (each.noise, each.directions) == ("Gaussian", directions)]
    return [each.ratio / each.normalized for each in mine]


def _correlation(summary: ModelSummary) -> str:
    return f"{summary.model}: rho {summary.rho:.3f} [{summary.rho_low:.3f}, {summary.rho_high:.3f}]"


def _median(summary: ModelSummary) -> str:
    band = f"[{summary.band_low:.2f}, {summary.band_high:.2f}]"
    return f"{summary.model}: median {summary.median:.2g}, null band {band}"


def _inside_band(summary: ModelSummary) -> bool:
    return summary.band_low <= summary.median <= summary.band_high
