"""What the paper says of pretraining, and what was measured.

Claims about final losses are tested together (`paired_claims`): Student's test over the seeds both methods have,
corrected for their number. Tokens saved are told beside them and decide nothing.
"""

import math
from collections.abc import Sequence

from ...engine.study import Claim, Row
from ..intervals import Interval
from ..lm_methods import METHOD_NAMES
from ..paired_claims import PairedClaim, judge
from .savings import Curves, curves, differences, saving
from .search import best, edges_in_words, trials_of


def claims(rows: Sequence[Row]) -> list[Claim]:
    """The paper's claims of which both methods were run."""
    found = curves(rows)
    edges = {name: edges_in_words(name, trials) for name in found if (trials := trials_of(name, rows))}
    compared = [
        _saves("adamw", "post-smooth", "7.6 %", found, edges),
        _saves("muon", "pre-smooth", "1.9 %", found, edges),
        _ends_below("post-smooth", "post-hard", found, edges),
        _ends_below("pre-smooth", "pre-hard", found, edges),
        _ends_below("pre-smooth", "spectra", found, edges),
    ]
    moved = [_higher_rate("adamw", "post-smooth", rows), _higher_rate("muon", "pre-smooth", rows)]
    return [*judge([each for each in compared if each]), *(claim for claim in moved if claim)]


def _saves(
    baseline: str, method: str, paper: str, found: dict[str, Curves], edges: dict[str, list[str]]
) -> PairedClaim | None:
    claim = f"Smooth shrinkage saves tokens on {METHOD_NAMES[baseline]} (in the paper {paper})"
    compared = _compared(claim, method, baseline, found, edges)
    if compared is None:
        return None
    return compared._replace(before=f"saving {percent(saving(found[baseline], found[method]))}, ")


def _ends_below(method: str, other: str, found: dict[str, Curves], edges: dict[str, list[str]]) -> PairedClaim | None:
    return _compared(f"{METHOD_NAMES[method]} ends below {METHOD_NAMES[other]}", method, other, found, edges)


def _compared(
    claim: str, method: str, other: str, found: dict[str, Curves], edges: dict[str, list[str]]
) -> PairedClaim | None:
    """A claim that `method` ends below `other`; None where either was not run, or they have no seed in common."""
    if method not in found or other not in found or not set(found[method].seeds) & set(found[other].seeds):
        return None
    notes = [f"{METHOD_NAMES[name]}: {', '.join(edges[name])}" for name in (other, method) if edges.get(name)]
    return PairedClaim(claim, differences(found[other], found[method]), notes=tuple(notes))


def _higher_rate(baseline: str, method: str, rows: Sequence[Row]) -> Claim | None:
    """The best rates of the tuning, which has one seed: told, but not enough to hold."""
    trials = {name: trials_of(name, rows) for name in (baseline, method)}
    if not all(trials.values()):
        return None
    rates = {name: best(each).lr for name, each in trials.items()}
    claim = f"The best learning rate of {METHOD_NAMES[baseline]} moves up with smooth shrinkage"
    measured = (
        f"from {rates[baseline]:g} to {rates[method]:g}, {len(trials[method])} trials each on one seed: not tested"
    )
    return Claim(claim, measured, False)


def percent(value: Interval) -> str:
    """A saving as text.

    >>> percent(Interval(0.05, 0.02, 0.08)), percent(Interval(0.01, -math.inf, 0.03))
    ('5.0 % [2.0, 8.0]', '1.0 % [not reached, 3.0]')
    """
    if math.isnan(value.value):
        return "a run of the baseline diverged"
    if value.value == -math.inf:
        return (
            "none: its final loss is not reached"
            if value.high == -math.inf
            else f"none [not reached, {_share(value.high)}]"
        )
    return f"{_share(value.value)} % [{_share(value.low)}, {_share(value.high)}]"


def _share(value: float) -> str:
    return "not reached" if value == -math.inf else f"{100 * value:.1f}"
