"""What the paper says of pretraining, and what was measured."""

import math
from collections.abc import Sequence

from ...engine.study import Claim, Row
from ..intervals import Interval, nats
from ..lm_methods import METHOD_NAMES
from .savings import Curves, curves, difference, saving
from .search import at_edge, best, trials_of


def claims(rows: Sequence[Row]) -> list[Claim]:
    """The paper's claims of which both methods were run; one holds if its whole interval is on its side."""
    found = curves(rows)
    edge = [name for name in found if (trials := trials_of(name, rows)) and at_edge(trials)]
    made = [
        _saves("adamw", "post-smooth", "7.6 %", found, edge),
        _saves("muon", "pre-smooth", "1.9 %", found, edge),
        _ends_below("post-smooth", "post-hard", found, edge),
        _ends_below("pre-smooth", "pre-hard", found, edge),
        _ends_below("pre-smooth", "spectra", found, edge),
        _higher_rate("adamw", "post-smooth", rows),
        _higher_rate("muon", "pre-smooth", rows),
    ]
    return [claim for claim in made if claim]


def _saves(baseline: str, method: str, paper: str, found: dict[str, Curves], edge: list[str]) -> Claim | None:
    if baseline not in found or method not in found:
        return None
    tokens, loss = saving(found[baseline], found[method]), difference(found[baseline], found[method])
    measured = f"saving {percent(tokens)}, final loss {nats(loss)} ({_basis((baseline, method), found, edge)})"
    claim = f"Smooth shrinkage saves tokens on {METHOD_NAMES[baseline]} (in the paper {paper})"
    return Claim(claim, measured, tokens.low > 0 and loss.high < 0)  # a saving, and a lower loss, whatever the seeds


def _ends_below(method: str, other: str, found: dict[str, Curves], edge: list[str]) -> Claim | None:
    if method not in found or other not in found:
        return None
    loss = difference(found[other], found[method])
    claim = f"{METHOD_NAMES[method]} ends below {METHOD_NAMES[other]}"
    measured = f"final loss {nats(loss)} ({_basis((method, other), found, edge)})"
    return Claim(claim, measured, loss.high < 0)


def _higher_rate(baseline: str, method: str, rows: Sequence[Row]) -> Claim | None:
    trials = {name: trials_of(name, rows) for name in (baseline, method)}
    if not all(trials.values()):
        return None
    rates = {name: best(each).lr for name, each in trials.items()}
    claim = f"The best learning rate of {METHOD_NAMES[baseline]} moves up with smooth shrinkage"
    measured = f"from {rates[baseline]:g} to {rates[method]:g}, {len(trials[method])} trials each, one seed"
    return Claim(claim, measured, rates[method] > rates[baseline])


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


def _basis(pair: tuple[str, str], found: dict[str, Curves], edge: list[str]) -> str:
    """Say what a comparison rests on: its seeds, and whether the tuning of either ended at the edge of its rates."""
    seeds = f"{len(set(found[pair[0]].seeds) & set(found[pair[1]].seeds))} seeds"
    return "; ".join([seeds, *(f"best rate of {METHOD_NAMES[name]} at the edge" for name in pair if name in edge)])
