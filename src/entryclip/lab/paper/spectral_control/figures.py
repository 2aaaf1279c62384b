"""Figure of each clip at its best threshold under each noise: two tables of numbers on colours."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...engine.figure_ids import KEEP_COLOURS
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
            for axis, words in ((error, f"{each.error:.2g}"), (kept, kept_label(each, "\n"))):
                text = axis.text(j, i, words, ha="center", va="center", fontsize=9)
                text.set_gid(f"{KEEP_COLOURS}-{axis.get_subplotspec().colspan.start}-{i}-{j}")  # type: ignore[union-attr]
    error.set_yticks(range(len(NOISES)), list(NOISES))
    kept.set_yticks(range(len(NOISES)), [""] * len(NOISES))
    error.set_title(r"relative error of $\sigma_1$")
    kept.set_title("top direction kept")
    return {"control": figure}


def _table(axis: "Axes", goodness: list[list[float]]) -> None:
    """Colour a table by values from 0 (red) to 1 (green), with the clips as its columns."""
    from matplotlib import colormaps

    pale = 0.25 + 0.75 * colormaps["RdYlGn"](np.array(goodness))[..., :3]  # black numbers can be read on all of it
    axis.imshow(pale, aspect="auto")
    axis.set_xticks(range(1 + len(CLIPS)), [name.replace(" ", "\n") for name in ("none", *CLIPS)])
    axis.grid(visible=False)
    axis.tick_params(length=0)
