"""Figure of the final loss against the share of contamination."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...engine.study import Row
from ..palette import BLUE, GREEN, GREY, OLIVE, RED
from .study import UntunedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPTIONS = {
    "untuned": "Final loss at the best setting of each method against the share alpha of Cauchy entries in the noise "
    "(median of the seeds). The paper's clips have quantile and learning rate tuned, auto() the learning rate alone. "
    "Without a clip gradient descent is far above.",
}
_LOOKS = {
    "none": (GREY, ":"),
    "hard": (BLUE, "--"),
    "smooth": (RED, "--"),
    "auto, smooth": (GREEN, "-"),
    "auto, hard": (OLIVE, "-."),
}
_NAMES = {"none": "no clip", "hard": "hard, tuned quantile", "smooth": "smooth, tuned quantile"}


def figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    """Draw one panel per size and stage."""
    from ...engine.figures import panels

    runs = UntunedRun.from_rows(rows)
    cells = sorted({(run.d, run.stage) for run in runs}, key=lambda cell: (cell[0], cell[1] == "pre"))
    figure, axes = panels(len(cells), width=4.2, height=3.6)
    for (d, stage), axis in zip(cells, axes, strict=True):
        here = [run for run in runs if (run.d, run.stage) == (d, stage)]
        alphas = sorted({run.alpha for run in here})
        top = 0.0
        for method, (colour, line) in _LOOKS.items():
            best = [min(r.loss for r in here if (r.alpha, r.method) == (a, method)) for a in alphas]
            label = _NAMES.get(method, method)
            axis.plot(range(len(alphas)), best, color=colour, ls=line, lw=2, marker="o", ms=3, label=label)
            top = max(top, *best) if method != "none" else top
        axis.set_xticks(range(len(alphas)), [f"{alpha:g}" for alpha in alphas])
        title = "gradient descent" if stage == "post" else "spectral gradient descent"
        axis.set(yscale="log", xlabel="alpha", ylabel="final loss", title=f"{title}, d = {d}", ylim=(None, 3 * top))
    lines, labels = axes[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=min(len(labels), 2 * len(cells)), frameon=False)
    return {"untuned": figure}
