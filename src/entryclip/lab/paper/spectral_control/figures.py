"""Figure of each clip at its best threshold under each noise: two tables of numbers on colours."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...engine.study import Row
from .claims import BestClips, kept_label
from .study import CLIPS, NOISES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTIONS = {
    "control": "Each clip at its best threshold, under noise of the same spectral norm. Left: relative error of "
    "sigma_1, median over the draws. Right: share of G's top direction (squared cosine) kept in the leading singular "
    "space, and the dimension of that where it is not 1. Green is good in both.",
}


def figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    """Draw the errors of sigma_1 and the shares of the top direction kept, noise by noise and clip by clip."""
    from ...engine.figures import panels

    best = BestClips(rows)
    figure, (error, kept) = panels(2, width=5.6, height=3.2)
    found = [[best(noise, clip) for clip in ("none", *CLIPS)] for noise in NOISES]
    _table(error, [[1 - min(each.error, 1.0) for each in line] for line in found])
    _table(kept, [[each.kept for each in line] for line in found])
    for i, line in enumerate(found):
        for j, each in enumerate(line):
            error.text(j, i, f"{each.error:.2g}", ha="center", va="center", fontsize=9)
            kept.text(j, i, kept_label(each, "\n"), ha="center", va="center", fontsize=9)
    error.set_yticks(range(len(NOISES)), list(NOISES))
    kept.set_yticks(range(len(NOISES)), [""] * len(NOISES))
    error.set_title(r"relative error of $\sigma_1$")
    kept.set_title("top direction kept")
    return {"control": figure}


def _table(axis: "Axes", goodness: list[list[float]]) -> None:
    """Colour a table by values from 0 (red) to 1 (green), with the clips as its columns."""
    axis.imshow(goodness, cmap="RdYlGn", vmin=0, vmax=1, aspect="auto", alpha=0.75)
    axis.set_xticks(range(1 + len(CLIPS)), [name.replace(" ", "\n") for name in ("none", *CLIPS)])
    axis.grid(visible=False)
    axis.tick_params(length=0)
