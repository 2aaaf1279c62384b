"""Whether `auto()` keeps up with the best of the other methods at every dose, and from which dose on it pays."""

from collections.abc import Sequence

from ...engine.study import Claim, Row
from ..intervals import nats
from ..lm_methods import METHOD_NAMES, PUBLISHED
from .curves import AUTO, CORRUPTION_NAMES, Panel, panels_of

BOUND = 0.01  # nats, fixed before the runs


def claims(rows: Sequence[Row]) -> list[Claim]:
    """For each optimizer and corruption: each `auto()` against the best other method, and the dose where clips pay."""
    made = []
    for panel in panels_of(rows):
        autos = [method for method in panel.losses if method in AUTO]
        for rivals in _rivals(panel):
            made += [_keeps_up(panel, method, rivals) for method in autos]
        made += [_pays(panel, autos)] if autos else []
    return made


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


def _pays(panel: Panel, autos: Sequence[str]) -> Claim:
    found = {method: panel.pays_from(method) for method in panel.losses if method != panel.baseline}
    text = "; ".join(f"{METHOD_NAMES[name]}: {dose_in_words(dose)}" for name, dose in found.items())
    return Claim(
        f"{METHOD_NAMES[panel.baseline]}, {CORRUPTION_NAMES[panel.corruption]}: auto() ends below no clip from some "
        "dose on, beyond the 95 % interval",
        text,
        any(found[method] is not None for method in autos),
    )


def dose_in_words(dose: float | None) -> str:
    """Write the dose from which on a clip pays.

    >>> dose_in_words(1e-5), dose_in_words(None)
    ('from 1e-05 on', 'at no dose')
    """
    return "at no dose" if dose is None else f"from {dose:g} on"
