"""The answers of docs/does-it-help.md: what each clip did to the loss, from the rows under results/.

`python -m benchmarks.does_it_help` draws the figure; `python -m benchmarks.table` writes the table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entryclip.lab.engine.store import load_rows
from entryclip.lab.paper.dose_response.curves import CORRUPTION_NAMES as DOSE_NAMES
from entryclip.lab.paper.dose_response.curves import panels_of
from entryclip.lab.paper.dose_response.study import DoseConfig
from entryclip.lab.paper.intervals import Interval, nats
from entryclip.lab.paper.lm_methods import METHOD_NAMES
from entryclip.lab.paper.pretraining.savings import Curves, curves, difference
from entryclip.lab.paper.spike.replays import CORRUPTION_NAMES, comparisons
from entryclip.lab.paper.spike.study import SpikeConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
CLEAN = "clean text"
CLEAN_COMMAND = "`entryclip reproduce pretraining`"
SPIKE_COMMAND = "`entryclip reproduce spike`"
DOSE_COMMAND = "`entryclip reproduce dose-response`"
DOSES = {"bits": 1e-4, "cauchy": 1e-2}  # of each corruption the dose that this page shows; docs/auto.md has them all
_VERDICTS = {-1: "helps", 0: "no difference to be told", 1: "harms"}
_NOTHING = 1e-3  # nats, below which an effect is of no use to anyone, however certain it is


@dataclass(frozen=True)
class Answer:
    """One clip in one situation: the loss with it less that without, over paired seeds."""

    situation: str
    method: str
    effect: Interval  # nats; below 0: the clip helps
    seeds: int
    tokens: str  # that a run sees
    command: str

    @property
    def verdict(self) -> str:
        """What the interval says."""
        if self.effect.low > -_NOTHING and self.effect.high < _NOTHING:
            return "no difference to speak of"
        return _VERDICTS[int(self.effect.low > 0) - int(self.effect.high < 0)]


def answers(results: Path = ROOT / "results") -> list[Answer]:
    """Every clip of the pretraining study and its controls, of the spike's replay, and under corrupted gradients."""
    return [*_on_clean_text(results), *_after_a_spike(results), *_under_corruption(results)]


def _on_clean_text(results: Path) -> list[Answer]:
    more = results / "pretraining-controls"
    again = [load_rows(more / name / "pretraining") for name in ("adamw-again", "adamw-smooth-again")]
    found = curves([*load_rows(results / "pretraining-small" / "pretraining"), *again[0], *again[1]])
    own_rate = curves(load_rows(more / "muon-smooth-rate" / "pretraining"))["pre-smooth"]
    pairs = [("adamw", name, found[name]) for name in ("post-smooth", "post-smooth-rms", "post-hard", "adamw-norm")]
    pairs += [("muon", "pre-smooth", own_rate), ("muon", "pre-hard", found["pre-hard"])]
    return [_trained(METHOD_NAMES[name], found[base], method) for base, name, method in pairs]


def _after_a_spike(results: Path) -> list[Answer]:
    """The rise of the loss after four corrupted batches, less that without a clip."""
    found = [each for each in comparisons(load_rows(results / "spike")) if each.method != each.base]
    config = SpikeConfig()
    tokens = f"{(config.before + config.after) * config.sequences * config.length / 1e6:.1f}M"
    return [
        Answer(
            f"four batches of {CORRUPTION_NAMES[each.corruption]}",
            METHOD_NAMES[each.method],
            each.less_plain(),
            len(each.replays),
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
                    panel.against_none(method, dose),
                    len(losses[dose]),
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
            "so the clip": each.verdict,
            "seeds": each.seeds,
            "tokens a run": each.tokens,
            "command": each.command,
        }
        for each in found
    ]


def _trained(name: str, base: Curves, method: Curves) -> Answer:
    seeds = len(set(base.seeds) & set(method.seeds))
    tokens = f"{base.tokens[-1] / 1e6:.1f}M"
    return Answer(CLEAN, name, difference(base, method), seeds, tokens, CLEAN_COMMAND)


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
            colour = {"helps": "#1d7a46", "harms": "#c8352b"}.get(each.verdict, "#555555")
            axis.plot([each.effect.low, each.effect.high], [place, place], color=colour, lw=2)
            axis.plot(each.effect.value, place, "o", color=colour, ms=5)
        axis.axvline(0, color="black", lw=0.8)
        axis.set_yticks(range(len(here)), [f"{each.method} ({each.seeds} seeds)" for each in here])
        axis.invert_yaxis()
        axis.set_title(name, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("loss less that without the clip, nats (95 % interval; left of 0: the clip helps)")
    return drawn


if __name__ == "__main__":
    from entryclip.lab.engine.figures import save

    save(figure(answers()), ROOT / "results" / "does-it-help", "does-it-help")
