"""How a method is tuned: one trial after another, each chosen by the losses of those before.

Every method gets the same number of trials. The next one is the first of these that was not tried yet:
1. where the best learning rate is the largest or least so far, twice or half of it;
2. the method's other levels, at the best learning rate; where the best level is a threshold and the largest or least
   so far, three times or a third of it;
3. a half-step to either side of the best learning rate;
4. larger and smaller learning rates.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ...engine.study import Row
from ...lm.train import training_methods as methods


class Trial(NamedTuple):
    """A learning rate and a level of the clip, and the final validation loss of the run with them; inf: diverged."""

    lr: float
    level: float | None
    loss: float


def trials_of(method: str, rows: Iterable[Row]) -> list[Trial]:
    """The finished runs of a method's tuning, from the study's rows."""
    last = [row for row in rows if row["stage"] == "tuning" and row["method"] == method and row["last"]]
    losses = [math.inf if row["val_loss"] is None else row["val_loss"] for row in last]
    return [Trial(row["lr"], row["level"], loss) for row, loss in zip(last, losses, strict=True)]


def best(trials: Sequence[Trial]) -> Trial:
    """The trial with the smallest loss."""
    return min(trials, key=lambda trial: trial.loss)


def at_edge(trials: Sequence[Trial]) -> bool:
    """Whether the best learning rate is the least or the largest of those tried at its level.

    Then a better one may lie beyond. A single rate is no edge: it was not chosen among others.
    """
    rates, top = _rates(trials), best(trials).lr
    return len(rates) > 1 and top in (min(rates), max(rates))


def edges_in_words(method: str, trials: Sequence[Trial]) -> list[str]:
    """Say where the tuning of a method ended at the edge of what it tried, so that a better setting may lie beyond."""
    levels, top = {trial.level for trial in trials if trial.level is not None}, best(trials)
    found = ["best rate at the edge"] if at_edge(trials) else []
    if methods.find(method).levels and len(levels) == 1:
        found.append(f"level {top.level:g} alone was tried")
    elif len(levels) > 1 and top.level in (min(levels), max(levels)):
        found.append("best level at the edge")
    return found


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
    for level in _levels(method, trials):
        yield _rounded(top.lr), level
    for step in (math.sqrt(2), 1 / math.sqrt(2)):
        yield _rounded(top.lr * step), top.level
    for doublings in range(1, 100):
        yield _rounded(max(rates) * 2**doublings), top.level
        yield _rounded(min(rates) / 2**doublings), top.level


def _levels(method: str, trials: Sequence[Trial]) -> Iterator[float]:
    """The levels to try: the method's own, then thresholds beyond the best; a quantile has no scale to go along."""
    found, top = methods.find(method), best(trials).level
    yield from found.levels
    if top is not None and not found.level_is_quantile:
        tried = [trial.level for trial in trials if trial.level is not None]
        if top == max(tried):
            yield _rounded(3 * top)
        if top == min(tried):
            yield _rounded(top / 3)


def _rates(trials: Sequence[Trial]) -> list[float]:
    """The learning rates that were tried at the best level."""
    return [trial.lr for trial in trials if trial.level == best(trials).level]


def _rounded(lr: float) -> float:
    """Three digits, so that one rate has one text however it was computed."""
    return float(f"{lr:.3g}")
