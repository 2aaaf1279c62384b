"""Whether clips bring back the spectrum and the leading subspace of the first gradient, at every alpha.

What is kept of the leading k-dimensional subspace is a mean squared cosine. Two independent random subspaces of R^d
share k / d, the chance level: to keep no more is to keep nothing.
"""

import math

from ...engine.study import Claim, Row
from .results import RegressionResults

_METHODS = ("none", "hard", "smooth")
_NAMES = {"post": "GD", "pre": "spectral GD"}
_ABOVE_CHANCE = 1.5  # times the chance level, to count as something kept


def subspace_claims(results: RegressionResults, d: int, stage: str) -> list[Claim]:
    """The claims of one size and stage, each at every alpha above 0, with the settings that end lowest."""
    found: dict[float, dict[str, Row]] = {
        alpha: {method: results.spectrum(method, stage=stage, d=d, level=alpha) for method in ("clean", *_METHODS)}
        for alpha in results.levels()
        if alpha > 0
    }
    where = f"d = {d}, {_NAMES[stage]}, first gradient"
    kept = {alpha: {method: rows[method]["kept"] for method in _METHODS} for alpha, rows in found.items()}
    chance = next(iter(found.values()))["none"]["chance"]
    tops = {alpha: {method: top_over_clean(rows, method) for method in _METHODS} for alpha, rows in found.items()}
    return [
        Claim(
            f"{where}: both clips bring the largest singular value nearer to the clean one at every alpha",
            f"it over the clean one, per gain, without / hard / smooth: {_by_alpha(tops)}",
            all(max(_distance(at["hard"]), _distance(at["smooth"])) < _distance(at["none"]) for at in tops.values()),
        ),
        Claim(
            f"{where}: both clips keep more of the leading subspace than no clip at every alpha",
            f"kept without / hard / smooth (chance {chance:.3g}): {_by_alpha(kept)}",
            all(min(at["hard"], at["smooth"]) > at["none"] for at in kept.values()),
        ),
        Claim(
            f"{where}: what both clips keep is more than {_ABOVE_CHANCE:g} times the chance level at every alpha",
            _levels_at_chance(kept, chance),
            all(min(at["hard"], at["smooth"]) > _ABOVE_CHANCE * chance for at in kept.values()),
        ),
    ]


def top_over_clean(rows: dict[str, Row], method: str) -> float:
    """The largest singular value over its gain along the clean gradient, as a multiple of the clean one.

    A uniform shrinkage is but a smaller learning rate, so it is divided out.
    """
    return float(rows[method]["values"][0] / rows[method]["gain"] / rows["clean"]["values"][0])


def _distance(ratio: float) -> float:
    """How far a ratio is from 1, up or down; a gain that is not positive points the wrong way."""
    return abs(math.log(ratio)) if ratio > 0 else math.inf


def _levels_at_chance(kept: dict[float, dict[str, float]], chance: float) -> str:
    lost = {
        clip: [
            f"{alpha:g} ({at[clip] / chance:.2f})" for alpha, at in kept.items() if at[clip] <= _ABOVE_CHANCE * chance
        ]
        for clip in ("hard", "smooth")
    }
    words = [f"{clip} not at alpha = {', '.join(levels)}" for clip, levels in lost.items() if levels]
    return f"chance {chance:.3g}; " + ("; ".join(words) + " times chance" if words else "at every alpha")


def _by_alpha(numbers: dict[float, dict[str, float]]) -> str:
    return "; ".join(f"{alpha:g}: {' / '.join(f'{at[m]:.2f}' for m in _METHODS)}" for alpha, at in numbers.items())
