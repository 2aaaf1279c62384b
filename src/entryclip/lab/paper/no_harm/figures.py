"""Figure of the paired differences between runs with `auto()` and without a clip."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...engine.study import Row
from ..lm_methods import METHOD_LOOKS, METHOD_NAMES
from ..palette import BAND, INK
from .claims import MEAN_BOUND, UPPER_BOUND, interval_of, pairs_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPTIONS = {
    "no_harm": "Final validation loss with auto() less that without a clip, at the learning rate that is best without. "
    "Small points: one seed each, hollow where the two runs are equal to the bit. Large points and bars: the mean and "
    f"its 95 % interval. The claim is a mean left of the dashed line (+{MEAN_BOUND:g}) and an interval that ends left "
    f"of the dotted one (+{UPPER_BOUND:g}).",
}


def figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    """Draw `no_harm`, one line per method; a method with a run that diverged has its words in place of the interval."""
    from ...engine.figures import panels

    pairs = pairs_of(rows)
    figure, (axis,) = panels(1, width=7.0, height=1.2 + 0.6 * len(pairs))
    axis.axvline(0, color=INK, lw=0.8)
    axis.axvline(MEAN_BOUND, color=BAND, lw=1.2, ls="--", label="bound of the mean")
    axis.axvline(UPPER_BOUND, color=BAND, lw=1.2, ls=":", label="bound of the interval")
    for y, (method, each) in enumerate(pairs.items()):
        colour, differences = METHOD_LOOKS[method]["color"], each.differences
        for x, a, b in zip(differences, each.clipped, each.plain, strict=True):
            axis.plot([x], [y + 0.22], "o", ms=4, color=colour, mfc="none" if a.weights == b.weights else colour)
        if np.isnan(differences).any():
            lost = int(np.isnan(differences).sum())
            axis.text(0, y, f" {lost} of {len(differences)} pairs diverged", va="center", fontsize=8)
            continue
        found = interval_of(each)
        if np.isfinite(found.low):
            axis.plot([found.low, found.high], [y, y], color=colour, lw=2)
        axis.plot([found.value], [y], "D", ms=6, color=colour)
    axis.set_yticks(range(len(pairs)), [METHOD_NAMES[method] for method in pairs])
    axis.set(ylim=(len(pairs) - 0.5, -0.5), xlabel="final loss less that without a clip, nats")
    axis.legend(frameon=False, fontsize=8, ncols=2, loc="lower right", bbox_to_anchor=(1, 1), borderpad=0)
    return {"no_harm": figure}
