"""What the paper says of pretraining, and what was measured."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from .savings import Curves, Interval, curves, difference, saving
from .search import at_edge, best
from .tuning import trials_of

Row = dict[str, Any]
Claim = dict[str, Any]
NAMES = {
    "adamw": "AdamW",
    "adamw-norm": "AdamW, global norm clip",
    "post-hard": "AdamW, hard clip",
    "post-smooth": "AdamW, smooth shrinkage",
    "post-smooth-rms": "AdamW, smooth, RMS kept",
    "muon": "Muon",
    "spectra": "SPECTRA",
    "pre-hard": "Muon, hard clip",
    "pre-smooth": "Muon, smooth shrinkage",
    "snapshot": "the speed-run's Muon",
}
BASELINES = {**dict.fromkeys(("adamw-norm", "post-hard", "post-smooth", "post-smooth-rms"), "adamw")} | dict.fromkeys(
    ("spectra", "pre-hard", "pre-smooth"), "muon"
)


def claims(rows: Iterable[Row]) -> list[Claim]:
    """The paper's, each with an interval; one holds if the interval is on its side."""
    rows = list(rows)
    found = curves(rows)
    edge = [name for name in found if (trials := trials_of(name, rows)) and at_edge(trials)]
    made = [
        _saves("adamw", "post-smooth", "7.6 %", found, edge),
        _saves("muon", "pre-smooth", "1.9 %", found, edge),
        _above("post-smooth", "post-hard", found, edge),
        _above("pre-smooth", "pre-hard", found, edge),
        _above("pre-smooth", "spectra", found, edge),
        _higher_rate("adamw", "post-smooth", rows),
        _higher_rate("muon", "pre-smooth", rows),
    ]
    return [claim for claim in made if claim]


def _saves(baseline: str, method: str, paper: str, found: dict[str, Curves], edge: list[str]) -> Claim | None:
    if baseline not in found or method not in found:
        return None
    tokens, loss = saving(found[baseline], found[method]), difference(found[baseline], found[method])
    measured = f"saving {percent(tokens)}, final loss {nats(loss)} ({_basis((baseline, method), found, edge)})"
    claim = f"Smooth shrinkage saves tokens on {NAMES[baseline]} (in the paper {paper})"
    return {"claim": claim, "measured": measured, "holds": tokens.low > 0}


def _above(method: str, other: str, found: dict[str, Curves], edge: list[str]) -> Claim | None:
    if method not in found or other not in found:
        return None
    loss = difference(found[other], found[method])
    claim = f"{NAMES[method]} ends below {NAMES[other]}"
    measured = f"final loss {nats(loss)} ({_basis((method, other), found, edge)})"
    return {"claim": claim, "measured": measured, "holds": loss.high < 0}


def _higher_rate(baseline: str, method: str, rows: Sequence[Row]) -> Claim | None:
    trials = {name: trials_of(name, rows) for name in (baseline, method)}
    if not all(trials.values()):
        return None
    rates = {name: best(each).lr for name, each in trials.items()}
    claim = f"The best learning rate of {NAMES[baseline]} moves up with smooth shrinkage"
    measured = f"from {rates[baseline]:g} to {rates[method]:g}, {len(trials[method])} trials each, one seed"
    return {"claim": claim, "measured": measured, "holds": rates[method] > rates[baseline]}


def percent(value: Interval) -> str:
    """A saving in words.

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


def nats(value: Interval) -> str:
    """A difference of losses in words."""
    if math.isnan(value.value):
        return "a run diverged"
    return f"{value.value:+.4f} [{value.low:+.4f}, {value.high:+.4f}]"


def _basis(pair: tuple[str, str], found: dict[str, Curves], edge: list[str]) -> str:
    """What a comparison rests on: its seeds, and whether the tuning of either ended at the edge of its rates."""
    seeds = f"{len(set(found[pair[0]].seeds) & set(found[pair[1]].seeds))} seeds"
    return "; ".join([seeds, *(f"best rate of {NAMES[name]} at the edge" for name in pair if name in edge)])
