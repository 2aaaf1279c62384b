"""Figure of the final loss against the learning rate."""

from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING

from ...engine.study import Row
from ..palette import BLUE, GREY, ORANGE, RED
from .claims import loss_curves
from .study import TrainingRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPTIONS = {
    "learning_rate": "Final test loss of a small network against the learning rate (mean over seeds, band from least "
    "to most). Smooth shrinkage moves the curve to the right by about what it takes from the update's root mean "
    "square; with preserve_rms it returns to that of torch's AdamW.",
}


def figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    """Draw the loss against the learning rate, one curve per method."""
    from ...engine.figures import panels

    figure, (axis,) = panels(1, width=6.5, height=3.8)
    looks = zip((GREY, BLUE, RED, ORANGE), (":", "--", "-", "-."), strict=True)
    for (name, curve), (colour, line) in zip(loss_curves(TrainingRun.from_rows(rows)).items(), looks, strict=True):
        rates = sorted(curve)
        low, middle, high = ([f(curve[rate]) for rate in rates] for f in (min, mean, max))
        axis.plot(rates, middle, color=colour, ls=line, lw=2, marker="o", ms=3, label=name)
        axis.fill_between(rates, low, high, color=colour, alpha=0.12)
    axis.set(xscale="log", yscale="log", xlabel="learning rate", ylabel="final test loss")
    axis.legend(frameon=False)
    return {"learning_rate": figure}
