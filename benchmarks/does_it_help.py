"""The table and the figure of docs/does-it-help.md, and the README's excerpt of it.

`python -m benchmarks.does_it_help` draws the figure; `python -m benchmarks.table` writes the tables.
"""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from entryclip.lab.paper.intervals import nats
from entryclip.lab.paper.lm_methods import METHOD_NAMES

from .answers import CLEAN, FINE_TUNING, ROOT, Answer, answers, batches_of, entries_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"helps": "#1f6fb2", "seems to help": "#a9cde8", "harms": "#c8502b", "seems to harm": "#f2c1ab"}
_NEITHER = "#ededed"
MOST_IMPORTANT = (
    (CLEAN, "post-smooth"),
    (CLEAN, "muon-standardized"),
    (FINE_TUNING, "pre-smooth"),
    (batches_of("random"), "post-smooth"),
    (entries_of("bits"), "pre-auto"),
)


def most_important(found: Sequence[Answer]) -> list[Answer]:
    """The README's five: what to do on clean text, in fine-tuning, after a spike and where entries are corrupted."""
    by_place = {(each.situation, each.name): each for each in found}
    return [by_place[situation, METHOD_NAMES[method]] for situation, method in MOST_IMPORTANT]


def listed_answers(found: Sequence[Answer]) -> list[dict[str, Any]]:
    """The answers as lines of a table."""
    return [
        {
            "data": each.situation,
            "training": each.name,
            "loss less that without the clip": nats(each.effect),
            "p, corrected": f"{each.adjusted_p:.2g}",
            "so the clip": each.verdict,
            "seeds": len(each.differences),
            "tokens a run": each.tokens,
            "time of a step": f"{each.cost:.2f}",
            "command": each.command,
        }
        for each in found
    ]


def figure(found: Sequence[Answer]) -> "Figure":
    """Draw the effects as a table: a row for each method, a column for each situation, coloured by the verdict."""
    from matplotlib.figure import Figure

    situations = list(dict.fromkeys(each.situation for each in found))
    families = list(dict.fromkeys(each.base for each in found))
    rows = {base: list(dict.fromkeys(each.name for each in found if each.base == base)) for base in families}
    counts = [len(rows[base]) for base in families]
    drawn = Figure(figsize=(2.6 + 1.25 * len(situations), 1.6 + 0.33 * sum(counts)), layout="constrained")
    axes = drawn.subplots(len(families), 1, height_ratios=counts, squeeze=False)[:, 0]
    for axis, base in zip(axes, families, strict=True):
        places = {name: i for i, name in enumerate(rows[base])}
        for each in found:
            if each.base == base:
                _draw_cell(axis, situations.index(each.situation), places[each.name], each)
        axis.set(xlim=(-0.5, len(situations) - 0.5), ylim=(len(places) - 0.5, -0.5))
        axis.set_yticks(range(len(places)), list(places), fontsize=9)
        axis.set_ylabel(f"against {METHOD_NAMES[base]} without a clip", fontsize=9)
        axis.set_xticks([])
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    labels = [textwrap.fill(name, 17) for name in situations]
    axes[0].set_xticks(range(len(situations)), labels, fontsize=9)
    axes[0].xaxis.tick_top()
    _draw_legend(drawn)
    return drawn


def _draw_cell(axis: "Axes", x: int, y: int, answer: Answer) -> None:
    """Draw the mean effect; bold where it is beyond chance."""
    from matplotlib.patches import Rectangle

    colour = COLOURS.get(answer.verdict, _NEITHER)
    certain = answer.verdict in ("helps", "harms")
    axis.add_patch(Rectangle((x - 0.48, y - 0.44), 0.96, 0.88, color=colour, lw=0))
    weight, ink = ("bold", "white") if certain else ("normal", "black")
    axis.text(x, y, shown(answer.effect.value), ha="center", va="center", fontsize=9, weight=weight, color=ink)


def shown(effect: float) -> str:
    """Write an effect in nats for a cell of the figure.

    >>> shown(3.07), shown(-0.0895), shown(-0.0002)
    ('+3.1', '-0.089', '0')
    """
    if abs(effect) < 5e-4:
        return "0"
    return f"{effect:+.1f}" if abs(effect) >= 1 else f"{effect:+.3f}"


def _draw_legend(drawn: "Figure") -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=colour, label=verdict) for verdict, colour in COLOURS.items()]
    patches.append(Patch(color=_NEITHER, label="no difference that can be told, or none of use"))
    drawn.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False, fontsize=8)


if __name__ == "__main__":
    from entryclip.lab.engine.figures import save

    save(figure(answers()), ROOT / "results" / "does-it-help", "does-it-help")
