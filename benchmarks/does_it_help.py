"""The answers of docs/does-it-help.md: what each clip did to the loss, from the rows under results/.

`python -m benchmarks.does_it_help` draws the figure; `python -m benchmarks.table` writes the table.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from entryclip.lab.engine.store import load_rows
from entryclip.lab.paper.dose_response.curves import CORRUPTION_NAMES as DOSE_NAMES
from entryclip.lab.paper.dose_response.curves import panels_of
from entryclip.lab.paper.dose_response.study import DoseConfig
from entryclip.lab.paper.holm import holm
from entryclip.lab.paper.intervals import LEVEL, Interval, nats, paired_p, student_interval
from entryclip.lab.paper.lm_methods import METHOD_NAMES
from entryclip.lab.paper.no_harm.claims import pairs_of
from entryclip.lab.paper.no_harm.study import NoHarmConfig
from entryclip.lab.paper.pretraining.savings import Curves, curves, differences
from entryclip.lab.paper.spike.replays import CORRUPTION_NAMES, comparisons
from entryclip.lab.paper.spike.study import SpikeConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
CLEAN = "clean text"
CLEAN_COMMAND = "`entryclip reproduce pretraining`"
HARM_COMMAND = "`entryclip reproduce no-harm`"
SPIKE_COMMAND = "`entryclip reproduce spike`"
DOSE_COMMAND = "`entryclip reproduce dose-response`"
DOSES = {"bits": 1e-4, "cauchy": 1e-2}  # of each corruption the dose that this page shows; docs/auto.md has them all
COLOURS = {"helps": "#1d7a46", "seems to help": "#8fc4a4", "harms": "#c8352b", "seems to harm": "#e8a49f"}
_NOTHING = 1e-3  # nats, below which an effect is of no use to anyone, however certain it is


@dataclass(frozen=True)
class Answer:
    """One clip in one situation: the loss with it less that without, over paired seeds."""

    situation: str
    method: str
    differences: NDArray[np.float64]  # nats, one for each seed; below 0: the clip helps
    tokens: str  # that a run sees
    command: str
    adjusted_p: float = 1.0  # of a mean of 0, corrected for the number of answers of the situation (`holm`)

    @property
    def effect(self) -> Interval:
        """The mean difference with its 95 % interval."""
        return student_interval(self.differences)

    @property
    def verdict(self) -> str:
        """What the interval and the corrected p-value say."""
        if self.effect.low > -_NOTHING and self.effect.high < _NOTHING:
            return "changes nothing of use"
        if self.effect.low <= 0 <= self.effect.high:
            return "is not seen to matter"
        verb = "help" if self.effect.value < 0 else "harm"
        return f"{verb}s" if self.adjusted_p < 1 - LEVEL else f"seems to {verb}"


def answers(results: Path = ROOT / "results") -> list[Answer]:
    """Every clip on clean text, in the spike's replay, and under corrupted gradients."""
    found = [*_on_clean_text(results), *_auto_on_clean_text(results), *_after_a_spike(results)]
    return _judged_together([*found, *_under_corruption(results)])


def _judged_together(found: Sequence[Answer]) -> list[Answer]:
    """The answers with p-values that are corrected for the number of answers of the same situation."""
    judged = list(found)
    for situation in dict.fromkeys(each.situation for each in found):
        places = [i for i, each in enumerate(found) if each.situation == situation]
        adjusted = holm([paired_p(found[i].differences) for i in places])
        for i, p in zip(places, adjusted, strict=True):
            judged[i] = replace(found[i], adjusted_p=p)
    return judged


def _on_clean_text(results: Path) -> list[Answer]:
    more = results / "pretraining-controls"
    again = [load_rows(more / name / "pretraining") for name in ("adamw-again", "adamw-smooth-again")]
    found = curves([*load_rows(results / "pretraining-small" / "pretraining"), *again[0], *again[1]])
    own_rate = curves(load_rows(more / "muon-smooth-rate" / "pretraining"))["pre-smooth"]
    pairs = [("adamw", name, found[name]) for name in ("post-smooth", "post-smooth-rms", "post-hard", "adamw-norm")]
    pairs += [("adamw", "spectra", found["spectra"])]  # AdamW with the singular values of its update clipped
    pairs += [("muon", "pre-smooth", own_rate), ("muon", "pre-hard", found["pre-hard"])]
    return [_trained(METHOD_NAMES[name], found[base], method) for base, name, method in pairs]


def _auto_on_clean_text(results: Path) -> list[Answer]:
    """The final loss with `auto()`, where there is nothing to clip."""
    config = NoHarmConfig()
    tokens = f"{config.steps * config.sequences * config.length / 1e6:.1f}M"
    found = pairs_of(load_rows(results / "no-harm"))
    return [Answer(CLEAN, METHOD_NAMES[name], each.differences, tokens, HARM_COMMAND) for name, each in found.items()]


def _after_a_spike(results: Path) -> list[Answer]:
    """The rise of the loss after four corrupted batches, less that without a clip."""
    found = [each for each in comparisons(load_rows(results / "spike")) if each.method != each.base]
    config = SpikeConfig()
    tokens = f"{(config.before + config.after) * config.sequences * config.length / 1e6:.1f}M"
    return [
        Answer(
            f"four batches of {CORRUPTION_NAMES[each.corruption]}",
            METHOD_NAMES[each.method],
            each.differences,
            tokens,
            SPIKE_COMMAND,
        )
        for each in found
    ]


def _under_corruption(results: Path) -> list[Answer]:
    """The final loss of short runs in which entries of every gradient are corrupted."""
    config, found = DoseConfig(), []
    tokens = f"{config.steps * config.sequences * config.length / 1e6:.2f}M"
    panels = panels_of(load_rows(results / "dose-response"))
    for corruption, dose in DOSES.items():
        for panel in panels:
            if panel.corruption != corruption:
                continue
            found += [
                Answer(
                    _corrupted(corruption),
                    METHOD_NAMES[method],
                    losses[dose] - panel.losses[panel.baseline][dose],
                    tokens,
                    DOSE_COMMAND,
                )
                for method, losses in panel.losses.items()
                if method != panel.baseline
            ]
    return found


def _corrupted(corruption: str) -> str:
    return f"{DOSE_NAMES[corruption]} in 1 of {1 / DOSES[corruption]:,.0f} gradient entries"


def most_important(found: Sequence[Answer]) -> list[Answer]:
    """The README's five: the paper's clip on clean text and after a spike, and `auto()` where entries are corrupted."""
    random, bits = f"four batches of {CORRUPTION_NAMES['random']}", _corrupted("bits")
    wanted = [(CLEAN, "post-smooth"), (CLEAN, "pre-smooth"), (random, "post-smooth")]
    by_key = {(each.situation, each.method): each for each in found}
    return [by_key[place, METHOD_NAMES[name]] for place, name in [*wanted, (bits, "adamw-auto"), (bits, "pre-auto")]]


def listed_answers(found: Sequence[Answer]) -> list[dict[str, Any]]:
    """The answers as lines of a table."""
    return [
        {
            "data": each.situation,
            "training": each.method,
            "loss less that without the clip": nats(each.effect),
            "p, corrected": f"{each.adjusted_p:.2g}",
            "so the clip": each.verdict,
            "seeds": len(each.differences),
            "tokens a run": each.tokens,
            "command": each.command,
        }
        for each in found
    ]


def _trained(name: str, base: Curves, method: Curves) -> Answer:
    tokens = f"{base.tokens[-1] / 1e6:.1f}M"
    return Answer(CLEAN, name, differences(base, method), tokens, CLEAN_COMMAND)


def figure(found: Sequence[Answer]) -> "Figure":
    """The effects with their intervals, a panel for each situation; to the left of 0 the clip helps."""
    from matplotlib.figure import Figure

    situations = list(dict.fromkeys(each.situation for each in found))
    counts = [sum(each.situation == name for each in found) for name in situations]
    drawn = Figure(figsize=(8.5, 1.2 + 0.3 * len(found) + 0.5 * len(situations)), layout="constrained")
    axes = drawn.subplots(len(situations), 1, height_ratios=counts, squeeze=False)[:, 0]
    for axis, name in zip(axes, situations, strict=True):
        here = [each for each in found if each.situation == name]
        for place, each in enumerate(here):
            colour = COLOURS.get(each.verdict, "#555555")
            axis.plot([each.effect.low, each.effect.high], [place, place], color=colour, lw=2)
            axis.plot(each.effect.value, place, "o", color=colour, ms=5)
        axis.axvline(0, color="black", lw=0.8)
        axis.set_yticks(range(len(here)), [f"{each.method} ({len(each.differences)} seeds)" for each in here])
        axis.invert_yaxis()
        axis.set_title(name, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("loss less that without the clip, nats (95 % interval; left of 0: the clip helps)")
    return drawn


if __name__ == "__main__":
    from entryclip.lab.engine.figures import save

    save(figure(answers()), ROOT / "results" / "does-it-help", "does-it-help")
