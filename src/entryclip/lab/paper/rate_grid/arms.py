"""The text by which a grid names a method with its level, learning rates and warm-ups: one arm of the comparison.

METHOD[+tables][@LEVEL][/RATE+RATE...[/WARMUP+WARMUP...]]

adamw                           the grid's rates and warm-ups
pre-smooth@0.98                 the same, at another level of its clip than the paper's
post-smooth@0.995/0.016         this rate alone, with the grid's warm-ups
post-smooth@0.995//0            the grid's rates, without a warm-up
post-smooth+tables              the clip acts on embeddings, value embeddings and head too, not on hidden matrices alone
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from ...lm.train import training_methods
from ...lm.train.settings import Settings

Number = TypeVar("Number", int, float)
_TABLES = "+tables"
_EVERYWHERE = ("*", "embed.weight", "value_embeds.*", "lm_head.weight")  # as `clip_where` takes them: * are the hidden


class Arm(NamedTuple):
    """A method at one level of its clip, and the rates and warm-ups that it is run with."""

    method: str
    level: float | None
    rates: tuple[float, ...]
    warmups: tuple[int, ...]


def parse_arm(text: str, rates: Sequence[float], warmups: Sequence[int]) -> Arm:
    """Read an arm; `rates` and `warmups` are the grid's, for what the text leaves out.

    >>> parse_arm("post-smooth@0.99//0+50", (0.008, 0.016), (0,))
    Arm(method='post-smooth', level=0.99, rates=(0.008, 0.016), warmups=(0, 50))
    >>> parse_arm("muon", (0.008, 0.016), (0,)).level
    """
    name, *rest = text.split("/")
    if len(rest) > 2:
        raise ValueError(f"a method is METHOD[+tables][@LEVEL][/RATES[/WARMUPS]], got {text!r}")
    method, at, level = name.partition("@")
    known, with_tables = split_tables(method)
    found = training_methods.find(known)
    if with_tables and found.everywhere:
        raise ValueError(f"{known} acts on the tables anyway: leave out {_TABLES}, got {text!r}")
    own = _numbers(level, float, text)[0] if at else found.level
    if own is not None:
        found.check_level(own)
    chosen_rates = _numbers(rest[0], float, text) if rest and rest[0] else tuple(rates)
    chosen_warmups = _numbers(rest[1], int, text) if len(rest) > 1 and rest[1] else tuple(warmups)
    for what, values in (("rates", chosen_rates), ("warm-ups", chosen_warmups)):
        if not values or len(set(values)) < len(values):
            raise ValueError(f"the {what} of {text!r} must be one or more, each once, got {values}")
    return Arm(method, own, chosen_rates, chosen_warmups)


def split_tables(method: str) -> tuple[str, bool]:
    """Return the training method of an arm, and whether its clip acts on the tables too.

    >>> split_tables("post-smooth+tables"), split_tables("muon")
    (('post-smooth', True), ('muon', False))
    """
    return method.removesuffix(_TABLES), method.endswith(_TABLES)


def clipped_with_tables(settings: Settings) -> Settings:
    """Return the settings of a run whose clip acts on the tables, beside the matrices that it acts on anyway."""
    hidden, *tables = _EVERYWHERE
    return dataclasses.replace(settings, clip_where=(*(settings.clip_where or (hidden,)), *tables))


def _numbers(text: str, kind: Callable[[str], Number], whole: str) -> tuple[Number, ...]:
    """Read numbers joined by `+`."""
    try:
        return tuple(kind(each) for each in text.split("+"))
    except ValueError:
        raise ValueError(f"{text!r} in {whole!r} is no number, nor several joined by +") from None
