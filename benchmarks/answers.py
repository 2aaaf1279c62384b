"""What each clip did to the loss: one `Answer` for every clip and situation, from the rows under results/."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from entryclip.lab.bench.methods import cost_name
from entryclip.lab.engine.store import load_rows
from entryclip.lab.lm.train.training_methods import find
from entryclip.lab.paper.dose_response.curves import CORRUPTION_NAMES as DOSE_NAMES
from entryclip.lab.paper.dose_response.curves import panels_of
from entryclip.lab.paper.dose_response.study import DoseConfig
from entryclip.lab.paper.holm import holm
from entryclip.lab.paper.intervals import LEVEL, Interval, paired_p, student_interval
from entryclip.lab.paper.lm_methods import METHOD_NAMES
from entryclip.lab.paper.no_harm.claims import pairs_of
from entryclip.lab.paper.no_harm.study import NoHarmConfig
from entryclip.lab.paper.pretraining.savings import Curves, curves, differences
from entryclip.lab.paper.rate_grid.arms import split_tables
from entryclip.lab.paper.rate_grid.comparison import Arm, Grid, arm_name
from entryclip.lab.paper.rate_grid.study import RateGridRun
from entryclip.lab.paper.spike.replays import CORRUPTION_NAMES, comparisons
from entryclip.lab.paper.spike.study import SpikeConfig

ROOT = Path(__file__).parent.parent
CLEAN = "clean text"
# Grids of learning rates, by their folder under results/: every method at its own best, on seeds that chose nothing.
FINE_TUNING = "fine-tuning in batches of 1024 tokens"
GRIDS: Mapping[str, str] = {
    "rate-grid-muon": CLEAN,
    "rate-grid-adamw": CLEAN,
    "rate-grid-16k": "clean text, 122 steps of 16,384 tokens",
    "rate-grid-finetuning": FINE_TUNING,
}
DOSES = {"bits": 1e-4, "cauchy": 1e-2}  # of each corruption the dose that the page shows; docs/auto.md has them all
_NOTHING = 1e-3  # nats, below which an effect is of no use to anyone, however certain it is


@dataclass(frozen=True)
class Answer:
    """One clip in one situation: the loss with it less that without, over paired seeds."""

    situation: str
    method: str  # a key of TRAINING_METHODS
    name: str  # as tables have it
    differences: NDArray[np.float64]  # nats, one for each seed; below 0: the clip helps
    tokens: str  # that a run sees
    study: str  # whose rows these are
    adjusted_p: float = 1.0  # of a mean of 0, corrected for the number of answers of the situation (`holm`)
    cost: float | None = None  # time of a training step over that without the clip (`entryclip bench methods`)

    @property
    def base(self) -> str:
        """The method without a clip that it is compared with."""
        return find(self.method).optimizer

    @property
    def effect(self) -> Interval:
        """The mean difference with its 95 % interval."""
        return student_interval(self.differences)

    @property
    def command(self) -> str:
        """The command whose rows these are, to be completed by the fields that the page of its study gives."""
        return f"`entryclip reproduce {self.study}`"

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
    at_own_best = [
        each for folder, name in GRIDS.items() for each in _at_own_best(results / folder / "rate-grid", name)
    ]
    there = {(each.situation, each.method) for each in at_own_best}
    searched = [each for each in _searched(results) if (each.situation, each.method) not in there]
    found = [*at_own_best, *searched, *_auto_on_clean_text(results), *_after_a_spike(results)]
    return _with_costs(judged_together([*found, *_under_corruption(results)]), results)


def judged_together(found: Sequence[Answer]) -> list[Answer]:
    """The answers with p-values that are corrected for the number of answers of the same situation."""
    judged = list(found)
    for situation in dict.fromkeys(each.situation for each in found):
        places = [i for i, each in enumerate(found) if each.situation == situation]
        adjusted = holm([paired_p(found[i].differences) for i in places])
        for i, p in zip(places, adjusted, strict=True):
            judged[i] = replace(found[i], adjusted_p=p)
    return judged


def _with_costs(found: Sequence[Answer], results: Path) -> list[Answer]:
    rows = json.loads((results / "benchmarks-methods.json").read_text())["rows"]
    ratios = {row["name"]: row["ratio"] for row in rows}
    return [replace(each, cost=ratios[cost_name(each.method)]) for each in found]


def _at_own_best(folder: Path, situation: str) -> Iterator[Answer]:
    """Each method of a grid against the one without a clip, both at their best rates and warm-ups."""
    rows = load_rows(folder)
    grid, tokens = Grid.from_rows(rows), max(run.tokens for run in RateGridRun.from_rows(rows))
    for arm, cell in grid.best.items():
        baseline = grid.baseline_of(arm)
        if baseline is not None:
            apart = grid.differences(cell, baseline)
            method, _ = split_tables(arm[0])
            yield Answer(situation, method, _arm_name(arm), apart, f"{tokens / 1e6:.1f}M", "rate-grid")


def _arm_name(arm: Arm) -> str:
    """Name a method of a grid as elsewhere, with its level where that is not the paper's."""
    method, level = arm
    usual = level == find(split_tables(method)[0]).level
    return arm_name(arm, [arm] if usual else [arm, arm])


def _searched(results: Path) -> Iterator[Answer]:
    """The methods of the pretraining study, at the rates and levels that its search found."""
    more = results / "pretraining-controls"
    again = [load_rows(more / name / "pretraining") for name in ("adamw-again", "adamw-smooth-again")]
    found = curves([*load_rows(results / "pretraining-small" / "pretraining"), *again[0], *again[1]])
    own_rate = curves(load_rows(more / "muon-smooth-rate" / "pretraining"))["pre-smooth"]
    pairs = [("adamw", name, found[name]) for name in ("post-smooth", "post-smooth-rms", "post-hard", "adamw-norm")]
    pairs += [("adamw", "spectra", found["spectra"])]  # AdamW with the singular values of its update clipped
    pairs += [("muon", "pre-smooth", own_rate), ("muon", "pre-hard", found["pre-hard"])]
    for base, method, own in pairs:
        yield _trained(method, found[base], own)


def _trained(method: str, base: Curves, own: Curves) -> Answer:
    tokens = f"{base.tokens[-1] / 1e6:.1f}M"
    return Answer(CLEAN, method, METHOD_NAMES[method], differences(base, own), tokens, "pretraining")


def _auto_on_clean_text(results: Path) -> Iterator[Answer]:
    """The final loss with `auto()`, where there is nothing to clip."""
    config = NoHarmConfig()
    tokens = f"{config.steps * config.sequences * config.length / 1e6:.1f}M"
    for method, each in pairs_of(load_rows(results / "no-harm")).items():
        yield Answer(CLEAN, method, METHOD_NAMES[method], each.differences, tokens, "no-harm")


def _after_a_spike(results: Path) -> Iterator[Answer]:
    """The rise of the loss after four corrupted batches, less that without a clip."""
    config = SpikeConfig()
    tokens = f"{(config.before + config.after) * config.sequences * config.length / 1e6:.1f}M"
    for each in comparisons(load_rows(results / "spike")):
        if each.method != each.base:
            situation, name = batches_of(each.corruption), METHOD_NAMES[each.method]
            yield Answer(situation, each.method, name, each.differences, tokens, "spike")


def batches_of(corruption: str) -> str:
    """Return the situation of the spike's replay with this corruption, in words."""
    return f"four batches of {CORRUPTION_NAMES[corruption]}"


def _under_corruption(results: Path) -> Iterator[Answer]:
    """The final loss of short runs in which entries of every gradient are corrupted."""
    config = DoseConfig()
    tokens = f"{config.steps * config.sequences * config.length / 1e6:.2f}M"
    panels = panels_of(load_rows(results / "dose-response"))
    for corruption, dose in DOSES.items():
        for panel in panels:
            if panel.corruption != corruption:
                continue
            for method, losses in panel.losses.items():
                if method != panel.baseline:
                    apart = losses[dose] - panel.losses[panel.baseline][dose]
                    name = METHOD_NAMES[method]
                    yield Answer(entries_of(corruption), method, name, apart, tokens, "dose-response")


def entries_of(corruption: str) -> str:
    """Return the situation of the dose-response with this corruption, in words."""
    return f"{DOSE_NAMES[corruption]} in 1 of {1 / DOSES[corruption]:,.0f} gradient entries"
