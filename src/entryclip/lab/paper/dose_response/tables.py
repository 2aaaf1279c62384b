"""Tables of the mean losses, one for each optimizer and corruption."""

from collections.abc import Mapping, Sequence

from ...engine.study import Row
from ..lm_methods import METHOD_NAMES
from .claims import dose_in_words
from .curves import CORRUPTION_NAMES, Panel, panels_of


def tables(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """The mean final loss of every method at every dose, by caption."""
    return {_caption(panel): [_line(panel, method) for method in panel.losses] for panel in panels_of(rows)}


def _caption(panel: Panel) -> str:
    name = f"{METHOD_NAMES[panel.baseline]}, {CORRUPTION_NAMES[panel.corruption]}"
    return (
        f"{name}: mean final loss by dose, the share of corrupted entries per step; a run that diverged, or ended "
        f"above, counts as {panel.still:.2f}, the loss of standing still (in brackets how many did); and from which "
        "dose on the method ends below no clip, beyond the 95 % interval over paired seeds"
    )


def _line(panel: Panel, method: str) -> Row:
    line: Row = {"method": METHOD_NAMES[method]}
    for dose in panel.doses:
        lost = panel.lost[method][dose]
        line[f"{dose:g}"] = f"{panel.mean(method, dose):.3f}" + (f" ({lost})" if lost else "")
    return {**line, "pays": "" if method == panel.baseline else dose_in_words(panel.pays_from(method))}
