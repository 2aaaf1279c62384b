"""A study for the tests of the runner whose units call for more, and may wait for a unit that is named later."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from entryclip.lab.engine.study import Claim, Study

PATIENCE = 60  # seconds; a runner that idles makes a unit wait for ever


@dataclass(frozen=True)
class Config:
    """Each method has `trials` units, one after the other; a unit that `waits` ends only when another has ended."""

    folder: str = ""  # where units leave a file when they end
    methods: tuple[str, ...] = ("a", "b")
    trials: int = 3
    waits: tuple[str, ...] = ()  # "a0<b2": trial 0 of a ends after trial 2 of b
    raises: tuple[str, ...] = ()  # "b1": trial 1 of b raises

    @classmethod
    def quick(cls):
        return cls()


def units(config):
    return [{"method": method, "trial": 0} for method in config.methods]


def next_units(config, rows):
    done = {method: sum(row["method"] == method for row in rows) for method in config.methods}
    return [{"method": name, "trial": count} for name, count in done.items() if 0 < count < config.trials]


def run_unit(config, piece):
    name = f"{piece['method']}{piece['trial']}"
    if name in config.raises:
        raise ZeroDivisionError(name)
    for other in [wait.split("<")[1] for wait in config.waits if wait.startswith(f"{name}<")]:
        end = time.monotonic() + PATIENCE
        while not Path(config.folder, other).exists():
            assert time.monotonic() < end, f"{name} has waited {PATIENCE} s for {other}"
            time.sleep(0.01)
    Path(config.folder, name).touch()
    return [dict(piece)]


def claims(rows):
    return [Claim("all are there", f"{len(rows)} rows", True)]


def named(name, **fields):
    """The study under this name, with a quick config of these fields."""

    class Quick(Config):
        quick = classmethod(lambda cls: Config(**fields))

    here = (sys.modules[__name__],)
    return Study(name, name, Quick, run_unit, no_figures, {}, claims, here, units=units, next_units=next_units)


def no_figures(rows):
    return {}
