"""How a method is tuned: one trial after another, each where the ones before say it is worth it.

Every method gets the same number of trials. The next one is the first of these that was not tried yet:
1. a learning rate beyond the grid, where the best lies at its edge;
2. the method's other levels, at the best learning rate;
3. a half-step to either side of the best learning rate;
4. a learning rate beyond the grid.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...lm.train import training_methods as methods


class Trial(NamedTuple):
    """What was tried, and the final validation loss; inf where it diverged."""

    lr: float
    level: float | None
    loss: float


def best(trials: Sequence[Trial]) -> Trial:
    """The one with the smallest loss."""
    return min(trials, key=lambda trial: trial.loss)


def at_edge(trials: Sequence[Trial]) -> bool:
    """Whether the best learning rate is the least or the largest of those tried at its level: a better one may lie
    beyond. One rate alone was not chosen among others."""
    rates, top = _rates(trials), best(trials).lr
    return len(rates) > 1 and top in (min(rates), max(rates))


def next_trial(method: str, trials: Sequence[Trial]) -> tuple[float, float | None]:
    """The learning rate and level to try after `trials`.

    >>> next_trial("adamw", [Trial(1e-3, None, 3.2), Trial(2e-3, None, 3.1)])
    (0.004, None)
    >>> next_trial("post-smooth", [Trial(1e-3, 0.995, 3.2), Trial(2e-3, 0.995, 3.1), Trial(4e-3, 0.995, 3.3)])
    (0.002, 0.99)
    """
    tried = {(_rounded(trial.lr), trial.level) for trial in trials}
    return next(each for each in _candidates(method, trials) if each not in tried)


def _candidates(method: str, trials: Sequence[Trial]) -> Iterator[tuple[float, float | None]]:
    top, rates = best(trials), _rates(trials)
    if top.lr == max(rates):
        yield _rounded(2 * top.lr), top.level
    if top.lr == min(rates):
        yield _rounded(top.lr / 2), top.level
    for level in methods.find(method).levels:
        yield _rounded(top.lr), level
    for step in (math.sqrt(2), 1 / math.sqrt(2)):
        yield _rounded(top.lr * step), top.level
    for doublings in range(1, 100):
        yield _rounded(max(rates) * 2**doublings), top.level
        yield _rounded(min(rates) / 2**doublings), top.level


def _rates(trials: Sequence[Trial]) -> list[float]:
    """Those tried at the best level."""
    return [trial.lr for trial in trials if trial.level == best(trials).level]


def _rounded(lr: float) -> float:
    """Three digits: the same text for the same rate, however it was come by."""
    return float(f"{lr:.3g}")
