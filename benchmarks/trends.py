"""Does what smooth shrinkage does, or the noise, change with the batch, the width or the length of a run?

Grids of learning rates (`entryclip reproduce rate-grid`) that differ in one number each. In every grid both methods are
at their own best learning rate. How a measurement changes is computed seed by seed, over the seeds that the grids have
in common: the slope against log2 of the number, that is what a doubling adds, with Student's interval over the seeds.
The p-values of all slopes are corrected together (Holm). What intervals do not contain is the choice of the learning
rates, by one seed in each grid.

`python -m benchmarks.trends` draws the figure; `python -m benchmarks.table` writes the tables.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from entryclip.lab.engine.store import load_rows
from entryclip.lab.paper.holm import holm
from entryclip.lab.paper.intervals import Interval, paired_p, student_interval
from entryclip.lab.paper.lm_methods import METHOD_NAMES
from entryclip.lab.paper.paired_claims import interval_in_words
from entryclip.lab.paper.pretraining.savings import Curves, saving
from entryclip.lab.paper.rate_grid.comparison import Grid
from entryclip.lab.paper.rate_grid.study import RateGridRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
PAIRS = {"adamw": ("post-smooth", 0.995), "muon": ("pre-smooth", 0.99)}  # the clip of each optimizer, at its level
_USUAL = ("rate-grid-adamw", "rate-grid-muon")  # 4096 tokens a step, width 128, 490 steps
# What is varied, and the folders under results/ by its value; grids that are not there are left out.
AXES: Mapping[str, Mapping[int, tuple[str, ...]]] = {
    "tokens a step": {1024: ("rate-grid-1k",), 4096: _USUAL, 16384: ("rate-grid-16k",)},
    "width": {64: ("rate-grid-64",), 128: _USUAL, 256: ("rate-grid-256",)},
    "steps": {490: _USUAL, 2450: ("rate-grid-long",)},
}
MEASURES = {
    "loss": "loss with smooth shrinkage less without",
    "raw_gain": "log2 of the best clip's gain, as it is",
    "standardized_gain": "log2 of the best clip's gain, standardised",
    "spike_score": "share of steps whose loss spikes, %",
}
_COLOURS = {"adamw": "#1f5fa8", "muon": "#c8352b"}

BySeed = dict[int, float]


@dataclass(frozen=True)
class Point:
    """An optimizer in one grid: smooth shrinkage against no clip, and the noise without a clip."""

    axis: str
    value: int  # of what the axis varies
    optimizer: str
    saved: Interval  # share of the tokens that smooth shrinkage saves
    measures: Mapping[str, BySeed]  # by the names in MEASURES; gains as log2; without runs that diverged

    def interval(self, measure: str) -> Interval:
        """The mean over the seeds, with its interval."""
        return student_interval(np.array(list(self.measures[measure].values())))


def points(results: Path = ROOT / "results") -> list[Point]:
    """Every optimizer in every grid that has it with and without its clip, where an axis has two grids or more."""
    found = []
    for axis, folders in AXES.items():
        for value, names in folders.items():
            rows = [
                row for name in names if (results / name).is_dir() for row in load_rows(results / name / "rate-grid")
            ]
            found += [each for optimizer in PAIRS if (each := _point(axis, value, optimizer, rows)) is not None]
    places = Counter((each.axis, each.optimizer) for each in found)
    return [each for each in found if places[each.axis, each.optimizer] > 1]


def _point(axis: str, value: int, optimizer: str, rows: Sequence[dict[str, Any]]) -> Point | None:
    grid, runs = Grid.from_rows(rows), RateGridRun.from_rows(rows)
    plain, clipped = grid.best.get((optimizer, None)), grid.best.get(PAIRS[optimizer])
    if plain is None or clipped is None:
        return None
    base, own = ({run.seed: run for run in runs if run.stage == "report" and run.cell == c} for c in (plain, clipped))
    seeds = sorted(seed for seed in base.keys() & own.keys() if base[seed].loss and own[seed].loss)
    if not seeds:
        return None
    measures: dict[str, BySeed] = {
        "loss": {seed: own[seed].final - base[seed].final for seed in seeds},
        "raw_gain": {seed: math.log2(gain) for seed in seeds if (gain := base[seed].raw_gain)},
        "standardized_gain": {seed: math.log2(gain) for seed in seeds if (gain := base[seed].standardized_gain)},
        "spike_score": {seed: score for seed in seeds if (score := base[seed].spike_score) is not None},
    }
    saved = saving(*(_curves([some[seed] for seed in seeds]) for some in (base, own)))
    return Point(axis, value, optimizer, saved, measures)


def _curves(runs: Sequence[RateGridRun]) -> Curves:
    tokens = np.array(runs[0].eval_steps, float) * runs[0].tokens / runs[0].eval_steps[-1]
    losses = np.array([run.eval_losses for run in runs])
    return Curves([run.seed for run in runs], tokens, losses, np.array([run.seconds for run in runs]))


@dataclass(frozen=True)
class Slope:
    """What a doubling of the varied number adds to a measurement, seed by seed."""

    axis: str
    optimizer: str
    measure: str
    values: tuple[int, ...]
    by_seed: NDArray[np.float64]


def slopes(found: Sequence[Point]) -> list[Slope]:
    """The slopes over every axis that has two grids or more, by the seeds that all of them have."""
    made = []
    for axis, optimizer in dict.fromkeys((each.axis, each.optimizer) for each in found):
        line = [each for each in found if (each.axis, each.optimizer) == (axis, optimizer)]
        if len(line) < 2:
            continue
        x = np.log2([each.value for each in line])
        for measure in MEASURES:
            seeds = sorted(set.intersection(*(set(each.measures[measure]) for each in line)))
            if not seeds:
                continue
            y = np.array([[each.measures[measure][seed] for each in line] for seed in seeds])
            by_seed = y @ (x - x.mean()) / ((x - x.mean()) ** 2).sum()
            made.append(Slope(axis, optimizer, measure, tuple(each.value for each in line), by_seed))
    return made


def slope_lines(found: Sequence[Point]) -> list[dict[str, Any]]:
    """The slopes as lines of a table, with p-values corrected for their number."""
    made = slopes(found)
    corrected = holm([paired_p(each.by_seed) for each in made])
    return [
        {
            "from": f"{each.values[0]:,} to {each.values[-1]:,} {each.axis}",
            "optimizer": METHOD_NAMES[each.optimizer],
            "what": MEASURES[each.measure],
            "a doubling adds": interval_in_words(each.by_seed),
            "seeds": len(each.by_seed),
            f"p, Holm over {len(made)}": f"{p:.2g}",
        }
        for each, p in zip(made, corrected, strict=True)
    ]


def point_lines(found: Sequence[Point]) -> list[dict[str, Any]]:
    """The grids as lines of a table."""
    return [
        {
            "grid": f"{each.value:,} {each.axis}",
            "optimizer": METHOD_NAMES[each.optimizer],
            "seeds": len(each.measures["loss"]),
            "smooth shrinkage less none": interval_in_words(np.array(list(each.measures["loss"].values()))),
            "tokens saved": _share(each.saved),
            "raw gain": f"{2 ** each.interval('raw_gain').value:.2f}",
            "standardised gain": f"{2 ** each.interval('standardized_gain').value:.2f}",
            "spikes": f"{each.interval('spike_score').value:.2f} %",
        }
        for each in found
    ]


def _share(saved: Interval) -> str:
    value, low, high = ("not reached" if each == -math.inf else f"{each:.1%}" for each in saved)
    return f"{value} [{low}, {high}]"


def figure(found: Sequence[Point]) -> "Figure":
    """Draw the difference of losses, and the gains, against every number that is varied."""
    from entryclip.lab.engine.figures import panels

    axes_names = [name for name in AXES if len({each.value for each in found if each.axis == name}) > 1]
    drawn, axes = panels(len(axes_names), rows=2, width=4.2, height=3.0)
    for i, name in enumerate(axes_names):
        above, below = axes[i], axes[i + len(axes_names)]
        for optimizer in PAIRS:
            line = [each for each in found if (each.axis, each.optimizer) == (name, optimizer)]
            _draw(above, line, "loss", METHOD_NAMES[optimizer], marker="o")
            _draw(below, line, "raw_gain", f"{METHOD_NAMES[optimizer]}, as it is", marker="o")
            _draw(below, line, "standardized_gain", f"{METHOD_NAMES[optimizer]}, standardised", marker="s", ls="--")
        above.axhline(0, color="#555555", lw=0.8)
        above.set(ylabel="smooth shrinkage less none, nats")
        below.set(ylabel="log2 of the best clip's gain")
        for axis in (above, below):
            axis.set_xscale("log", base=2)
            values = sorted({each.value for each in found if each.axis == name})
            axis.set_xticks(values, labels=[f"{value:,}" for value in values])
            axis.set_xlabel(name)
            axis.legend(frameon=False, fontsize=7)
    return drawn


def _draw(axis: "Axes", line: Sequence[Point], measure: str, label: str, **style: Any) -> None:
    if not line:
        return
    colour = _COLOURS[line[0].optimizer]
    shift = 2 ** (0.04 if line[0].optimizer == "muon" else -0.04)
    x, found = [each.value * shift for each in line], [each.interval(measure) for each in line]
    axis.plot(x, [each.value for each in found], color=colour, ms=5, lw=1.3, label=label, **style)
    for place, each in zip(x, found, strict=True):
        if math.isfinite(each.low):
            axis.plot([place, place], [each.low, each.high], color=colour, lw=1.3)


if __name__ == "__main__":
    from entryclip.lab.engine.figures import save

    save(figure(points()), ROOT / "results" / "trends", "trends")
