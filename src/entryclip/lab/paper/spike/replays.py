"""The rows of the spike study as replays: one method through one kind of corruption, with one seed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from ...engine.study import Row
from ..intervals import Interval, student_interval
from ..spike_score import spike_score
from .study import WATCHED, SpikeHistory, SpikeLoss

CORRUPTION_NAMES = {"random": "random tokens", "shuffled": "shuffled targets"}


@dataclass(frozen=True)
class Replay:
    """The losses of one run: those before the checkpoint, and those of the clean batches after the corrupted ones."""

    base: str
    method: str
    corruption: str
    seed: int
    before: list[float]
    steps: list[SpikeLoss]
    length: int  # steps of a run that does not diverge

    @property
    def clean_after(self) -> list[float | None]:
        """The losses after the corrupted batches; None for the steps that a diverged run did not reach."""
        reached = [step.loss for step in self.steps if not step.corrupted]
        return [*reached, *[None] * (self.length - len(self.steps))]

    @property
    def rise(self) -> float:
        """The mean loss of ten clean steps after the corrupted ones less that of ten before; inf if it diverged."""
        after = self.clean_after[:WATCHED]
        if None in after or len(self.before) < WATCHED:  # it diverged, perhaps before the corrupted batches
            return math.inf
        return fmean(loss for loss in after if loss is not None) - fmean(self.before[-WATCHED:])

    def score(self, deviations: float) -> float:
        """The spike score of the clean steps after the corrupted ones; 100 if the run diverged before these."""
        if len(self.before) < WATCHED:
            return 100.0
        return spike_score(self.before, self.clean_after, deviations)


@dataclass(frozen=True)
class Comparison:
    """All replays of one method through one corruption, beside those of its optimizer without a clip."""

    method: str
    corruption: str
    replays: list[Replay]
    plain: list[Replay]  # without a clip, with the same seeds in the same order

    @property
    def base(self) -> str:
        """The method without a clip."""
        return self.replays[0].base

    def loss_before(self) -> float:
        """The mean loss of ten steps before the corrupted batches; NaN where a run did not get there."""
        means = [fmean(each.before[-WATCHED:]) if each.before else math.nan for each in self.replays]
        return fmean(means)

    def rise(self) -> Interval:
        """The rise of the loss over the seeds."""
        return _interval([each.rise for each in self.replays])

    @property
    def differences(self) -> NDArray[np.float64]:
        """The rise less that without a clip, for each seed; not finite where a run diverged."""
        return np.array([mine.rise - theirs.rise for mine, theirs in zip(self.replays, self.plain, strict=True)])

    def less_plain(self) -> Interval:
        """The rise less that without a clip, over paired seeds; NaN if a run diverged."""
        return _interval(self.differences)

    def score(self, deviations: float) -> float:
        """The mean spike score over the seeds."""
        return fmean(each.score(deviations) for each in self.replays)


def comparisons(rows: Sequence[Row]) -> list[Comparison]:
    """Every method with its optimizer without a clip, corruption by corruption, on the seeds that both have."""
    by_run: dict[tuple[str, str, int], Replay] = {(r.method, r.corruption, r.seed): r for r in _replays(rows)}
    found = []
    for method, corruption in dict.fromkeys((method, corruption) for method, corruption, _ in by_run):
        mine = {seed: replay for (m, c, seed), replay in by_run.items() if (m, c) == (method, corruption)}
        base = next(iter(mine.values())).base
        common = [seed for seed in sorted(mine) if (base, corruption, seed) in by_run]
        plain = [by_run[base, corruption, seed] for seed in common]
        found.append(Comparison(method, corruption, [mine[seed] for seed in common], plain))
    return sorted(found, key=lambda each: (list(CORRUPTION_NAMES).index(each.corruption), each.base))


def _replays(rows: Sequence[Row]) -> list[Replay]:
    histories, losses = SpikeHistory.from_rows(rows), SpikeLoss.from_rows(rows)
    length = 1 + max(row.step for row in losses)
    before: dict[tuple[str, int], list[float]] = {}
    for row in histories:
        before.setdefault((row.start, row.seed), []).append(row.loss)
    runs: dict[tuple[str, str, str, int], list[SpikeLoss]] = {}
    for each in losses:
        runs.setdefault((each.base, each.method, each.corruption, each.seed), []).append(each)
    return [Replay(*key, before.get((steps[0].start, key[3]), []), steps, length) for key, steps in runs.items()]


def _interval(values: Sequence[float] | NDArray[np.float64]) -> Interval:
    """Student's interval; all NaN where a run diverged."""
    numbers = np.array(values, dtype=np.float64)
    return student_interval(numbers) if np.isfinite(numbers).all() else Interval(math.nan, math.nan, math.nan)
