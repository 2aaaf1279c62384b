"""The proposition and the three sentences of its remark, checked on the errors."""

from collections.abc import Iterable, Sequence

from ...engine.study import Claim, Row
from ..entrywise import OPERATORS
from .study import REGIMES, ClippedError


class Errors:
    """The errors in a study's rows, by kind of noise and operator."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.all = ClippedError.from_rows(rows)

    def over_thresholds(self, regime: str, operator: str) -> list[ClippedError]:
        """The errors of an operator under one kind of noise, one per threshold."""
        return [error for error in self.all if (error.regime, error.operator) == (regime, operator)]

    def unclipped(self, regime: str) -> ClippedError:
        """The errors without clipping."""
        (error,) = self.over_thresholds(regime, "none")
        return error

    def least_entrywise(self, regime: str, operator: str) -> ClippedError:
        """The errors at the threshold with the least entry-wise error."""
        return min(self.over_thresholds(regime, operator), key=lambda error: error.entrywise)

    def least_spectral(self, regime: str, operator: str) -> ClippedError:
        """The errors at the threshold with the least error of sigma_1."""
        return min(self.over_thresholds(regime, operator), key=lambda error: error.spectral)

    def remaining(self, regime: str) -> dict[str, float]:
        """The error of sigma_1 at the threshold of least entry-wise error over that without clipping, by operator."""
        plain = self.unclipped(regime).spectral
        return {name: self.least_entrywise(regime, name).spectral / plain for name in OPERATORS}

    def regret(self, regime: str) -> dict[str, float]:
        """The error of sigma_1 at the threshold of least entry-wise error over its least error, by operator."""
        pairs = {name: (self.least_entrywise(regime, name), self.least_spectral(regime, name)) for name in OPERATORS}
        return {name: chosen.spectral / best.spectral for name, (chosen, best) in pairs.items()}


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Check that the bound holds, where it is tight, and where its minimum helps sigma_1."""
    errors = Errors(rows)
    worst = max(error.tightest for error in errors.all)
    return [
        Claim(
            "the squared error of sigma_1 is below the sum of the entry-wise ones in every draw, no remainder",
            f"largest ratio {worst:.4f} over all noise, operators and thresholds",
            worst <= 1 + 1e-9,
        ),
        *_of_tightness({regime: errors.unclipped(regime) for regime in REGIMES}),
        *_of_least_error(errors),
    ]


def _of_tightness(plain: dict[str, ClippedError]) -> list[Claim]:
    aligned, gaussian, small, large = (plain[regime] for regime in REGIMES)
    return [
        Claim(
            "the bound is saturated for R-hat far below 1",
            f"aligned noise: R-hat {aligned.normalized:.2g}, ratio {aligned.tightness:.3f}",
            aligned.normalized < aligned.band_low and aligned.tightness > 0.5,
        ),
        Claim(
            "it is loose for R-hat near 1 and for a spike too small to take over sigma_1",
            _ratios((gaussian, small)),
            max(gaussian.tightness, small.tightness) < 0.01,
        ),
        Claim("it is loose for large spikes, too", _ratios((large,)), large.tightness < 0.01),
    ]


def _of_least_error(errors: Errors) -> list[Claim]:
    spikes, gaussian, regret = errors.remaining("large spikes"), errors.remaining("Gaussian"), errors.regret("aligned")
    return [
        Claim(
            "against large spikes the threshold of least entry-wise error removes most error of sigma_1",
            _shares(spikes),
            max(spikes.values()) < 0.2,
        ),
        Claim("against delocalized noise it does not", _shares(gaussian), min(gaussian.values()) > 0.5),
        Claim(
            "against aligned noise least entry-wise error is near least error of sigma_1, as the remark says",
            ", ".join(f"{name}: {value:.2f} times the least" for name, value in regret.items()),
            max(regret.values()) < 1.5,
        ),
    ]


def _ratios(errors: Iterable[ClippedError]) -> str:
    return ", ".join(f"{e.regime}: R-hat {e.normalized:.2g}, ratio {e.tightness:.1e}" for e in errors)


def _shares(remaining: dict[str, float]) -> str:
    return ", ".join(f"{name}: {value:.2g} of the error without" for name, value in remaining.items())
