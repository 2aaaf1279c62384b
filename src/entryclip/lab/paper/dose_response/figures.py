"""Figure of the final loss against the dose."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...engine.study import Row
from ..lm_methods import METHOD_LOOKS, METHOD_NAMES
from ..palette import BAND
from .curves import AUTO, CORRUPTION_NAMES, Panel, panels_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTIONS = {
    "dose_response": "What corruption costs: final validation loss less that of the same seed's run without a clip and "
    "without corruption (the line at 0), against the dose, the share of the hidden matrices' gradient entries that is "
    "corrupted in every step (mean over seeds, bars from least to most). The scale is linear up to .03 nats and "
    "logarithmic beyond. All methods train at the learning rate that is best without a clip. Runs that diverged, or "
    "ended above the loss of standing still (the logarithm of the vocabulary, a grey line where there are such runs), "
    "count as that.",
}
_LINEAR = 0.03  # nats
_TICKS = (-0.3, -0.1, -0.03, 0, 0.03, 0.1, 0.3, 1, 3)


def figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    """Draw `dose_response`: a row of panels per optimizer, a column per corruption."""
    from ...engine.figures import panels

    found = panels_of(rows)
    columns = len({panel.corruption for panel in found})
    figure, axes = panels(columns, rows=len(found) // columns, width=5.2, height=3.9)
    for i, (panel, axis) in enumerate(zip(found, axes, strict=True)):
        _draw(axis, panel, labelled=(i + 1) % columns == 0)
    return {"dose_response": figure}


def _draw(axis: "Axes", panel: Panel, labelled: bool) -> None:
    count, clean = len(panel.losses), panel.losses[panel.baseline][panel.doses[0]]
    for i, (method, losses) in enumerate(panel.losses.items()):
        look, shift = METHOD_LOOKS[method], 0.3 * (i / max(count - 1, 1) - 0.5)  # side by side, so that bars show
        places = [place + shift for place in range(len(panel.doses))]
        width = 2.2 if method in AUTO else 1.3
        axis.plot(
            *(places, [(losses[dose] - clean).mean() for dose in panel.doses]),
            **(look | {"lw": width, "marker": "o", "ms": 3, "label": METHOD_NAMES[method]}),
        )
        low, high = ([f(losses[dose] - clean) for dose in panel.doses] for f in (min, max))
        axis.vlines(places, low, high, color=look["color"], lw=0.8)
    if any(lost for by_dose in panel.lost.values() for lost in by_dose.values()):
        axis.axhline(panel.still - clean.mean(), color=BAND, lw=1)
    axis.axhline(0, color=BAND, lw=1)
    axis.set_yscale("symlog", linthresh=_LINEAR)
    axis.set_yticks(_TICKS, [f"{tick:+g}" if tick else "0" for tick in _TICKS])
    axis.minorticks_off()
    axis.set_xticks(range(len(panel.doses)), [f"{dose:g}" for dose in panel.doses])
    title = f"{METHOD_NAMES[panel.baseline]}, {CORRUPTION_NAMES[panel.corruption]}"
    axis.set(xlabel="share of entries corrupted per step", ylabel="loss less clean loss, nats", title=title)
    if labelled:
        axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
