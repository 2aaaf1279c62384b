"""Where smooth shrinkage is near the Bayes estimator, and where it is not, checked on the rows."""

from collections.abc import Callable, Sequence

import numpy as np

from ...engine.study import Claim, Row
from ..entrywise import OPERATORS
from .study import CurvePoint, EstimatorError

Excess = dict[tuple[float, float, float], dict[str, float]]  # (sigma, alpha, scale) -> method -> mse / Bayes mse


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare hard clipping and smooth shrinkage with the Bayes estimator and with each other."""
    errors = EstimatorError.from_rows(rows)
    far = max((p for p in CurvePoint.from_rows(rows) if p.method == "bayes"), key=lambda point: point.y)
    return [
        *_against_bayes(errors),
        _against_each_other(excess(errors)),
        Claim(
            "far out the Bayes estimator falls like 2 sigma_x^2 / y, not exponentially",
            f"y times the estimate at y = {far.y:.0f}: {far.y * far.estimate:.4f}",
            abs(far.y * far.estimate - 2) < 0.01,
        ),
    ]


def excess(errors: Sequence[EstimatorError]) -> Excess:
    """Group the errors, over the Bayes estimator's, by noise and method."""
    table: Excess = {}
    for error in errors:
        table.setdefault((error.sigma, error.alpha, error.scale), {})[error.method] = error.excess
    return table


def _against_bayes(errors: Sequence[EstimatorError]) -> list[Claim]:
    table = excess(errors)
    noisy = {m: _worst(table, m, lambda sigma, alpha: sigma >= 1 and alpha <= 0.5) for m in OPERATORS}
    clear = {m: _worst(table, m, lambda sigma, alpha: sigma < 1) for m in OPERATORS}
    share = {m: min(error.share for error in errors if error.alpha <= 0.5 and error.method == m) for m in OPERATORS}
    return [
        Claim(
            "where the Gaussian noise is no weaker than the signal and alpha <= .5, smooth shrinkage at its "
            "best is within 5 % of the Bayes estimator",
            f"at most {noisy['smooth'] - 1:.1%} above it; hard clipping {noisy['hard'] - 1:.0%}",
            noisy["smooth"] <= 1.05,
        ),
        Claim(
            "not where the signal dominates the Gaussian noise: there a sharper cut would pay",
            f"up to {clear['smooth'] - 1:.0%} above it; hard clipping {clear['hard'] - 1:.0%}",
            clear["smooth"] > 1.1,
        ),
        Claim(
            "of the reduction in error that the Bayes estimator achieves, smooth shrinkage gets at least 90 % "
            "for every noise with alpha <= .5; hard clipping does not",
            f"at least {share['smooth']:.0%}; hard clipping {share['hard']:.0%}",
            share["smooth"] >= 0.9 > share["hard"],
        ),
    ]


def _against_each_other(table: Excess) -> Claim:
    strong = [found["smooth"] < found["hard"] for (_, alpha, scale), found in table.items() if alpha * scale >= 0.1]
    weak = [found["smooth"] > found["hard"] for (_, alpha, scale), found in table.items() if alpha * scale <= 0.01]
    return Claim(
        "smooth beats hard where contamination matters (alpha gamma >= .1 sigma_x) and loses where it is "
        "rare and mild (<= .01)",
        f"better in {np.mean(strong):.0%} of the first, worse in {np.mean(weak):.0%} of the second",
        bool(np.mean(strong) > 0.75 and np.mean(weak) > 0.75),
    )


def _worst(table: Excess, method: str, chosen: Callable[[float, float], bool]) -> float:
    return max(found[method] for (sigma, alpha, _), found in table.items() if chosen(sigma, alpha))
