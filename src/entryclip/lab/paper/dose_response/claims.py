"""Whether `auto()` keeps up with the best of the other methods at every dose, and whether it pays at any."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...engine.study import Claim, Row
from ..holm import holm
from ..intervals import LEVEL, nats, paired_p
from ..lm_methods import METHOD_NAMES, PUBLISHED
from .curves import AUTO, CORRUPTION_NAMES, Panel, panels_of

BOUND = 0.01  # nats, fixed before the runs


def claims(rows: Sequence[Row]) -> list[Claim]:
    """For each optimizer and corruption: each `auto()` against the best other method, and whether it pays at any dose.

    Whether it pays is tested at every dose above 0; the p-values of all panels are corrected together (`holm`).
    """
    panels, made = panels_of(rows), []
    tests = [test for panel in panels for test in _tests(panel)]
    adjusted = dict(zip(tests, holm([test.p for test in tests]), strict=True))
    for panel in panels:
        for rivals in _rivals(panel):
            made += [_keeps_up(panel, method, rivals) for method in _autos(panel)]
        own = {test: adjusted[test] for test in _tests(panel)}
        made += [_pays(panel, own, len(tests))] if own else []
    return made


class DoseTest(NamedTuple):
    """Student's test of one `auto()` against no clip at one dose."""

    optimizer: str
    corruption: str
    method: str
    dose: float
    difference: float  # of the mean losses: below 0 it pays
    p: float


def _autos(panel: Panel) -> list[str]:
    return [method for method in panel.losses if method in AUTO]


def _tests(panel: Panel) -> list[DoseTest]:
    found = []
    for method in _autos(panel):
        for dose in panel.doses:
            if dose:
                differences = panel.losses[method][dose] - panel.losses[panel.baseline][dose]
                p = paired_p(differences)
                found.append(DoseTest(panel.baseline, panel.corruption, method, dose, float(differences.mean()), p))
    return found


def _rivals(panel: Panel) -> list[list[str]]:
    """No clip, norm clip and the paper's clips together; and the methods that others published, where there are any."""
    others = [method for method in panel.losses if method not in AUTO]
    published = [method for method in others if method in PUBLISHED]
    return [group for group in ([method for method in others if method not in PUBLISHED], published) if group]


def _keeps_up(panel: Panel, method: str, rivals: Sequence[str]) -> Claim:
    best = {dose: panel.best_of(rivals, dose) for dose in panel.doses}
    excess = {dose: panel.mean(method, dose) - panel.mean(best[dose], dose) for dose in panel.doses}
    text = ", ".join(f"{over:+.3f} at {dose:g}" for dose, over in excess.items())
    worst = max(excess, key=excess.__getitem__)
    found = panel.against(best[worst], method, worst)
    rival = f"largest against {METHOD_NAMES[best[worst]]}: {nats(found)}"
    seeds = len(panel.losses[method][worst])
    return Claim(
        f"{METHOD_NAMES[method]}, {CORRUPTION_NAMES[panel.corruption]}: at every dose at most {BOUND:g} nats above the "
        f"{'best published method' if rivals[0] in PUBLISHED else 'best of no clip, norm clip, hard and smooth'}",
        f"{text} ({rival}, {seeds} seeds)",
        excess[worst] <= BOUND,
    )


def _pays(panel: Panel, adjusted: Mapping[DoseTest, float], tested: int) -> Claim:
    clearest = [
        min((test for test in adjusted if test.method == method), key=lambda test: (adjusted[test], test.difference))
        for method in dict.fromkeys(test.method for test in adjusted)
    ]
    text = "; ".join(
        f"{METHOD_NAMES[test.method]} {test.difference:+.3f} at {test.dose:g} (p = {adjusted[test]:.2g})"
        for test in clearest
    )
    return Claim(
        f"{METHOD_NAMES[panel.baseline]}, {CORRUPTION_NAMES[panel.corruption]}: auto() ends below no clip at some dose",
        f"{text}; of each the dose with the least p, Holm over all {tested} such tests",
        any(test.difference < 0 and p < 1 - LEVEL for test, p in adjusted.items()),
    )


def dose_in_words(dose: float | None) -> str:
    """Write the dose from which on a clip pays.

    >>> dose_in_words(1e-5), dose_in_words(None)
    ('from 1e-05 on', 'at no dose')
    """
    return "at no dose" if dose is None else f"from {dose:g} on"
