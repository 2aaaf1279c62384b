"""A study for the tests of the runner: units that take their time, raise, diverge or die on request."""

import hashlib
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import entryclip
from entryclip.lab.engine.study import Claim, Study


@dataclass(frozen=True)
class Config:
    count: int = 6
    seconds: float = 0.0
    raises: tuple[int, ...] = ()
    diverges: tuple[int, ...] = ()
    dies: tuple[int, ...] = ()
    size: int = 1

    def __post_init__(self):
        if self.count < 1:
            raise ValueError(f"count must be >= 1, got {self.count}")

    @classmethod
    def quick(cls):
        return cls(count=2)


def units(config):
    return [{"i": i, "seed": 10 + i} for i in range(config.count)]


def run_unit(config, unit):
    """One line in the log for every unit that is really done; rows that depend on config and unit alone."""
    i = unit["i"]
    time.sleep(config.seconds)
    if i in config.raises:
        raise ZeroDivisionError(f"unit {i} <b>divided</b> by zero")
    if i in config.dies:
        os.kill(os.getpid(), signal.SIGKILL)
    if "TOY_LOG" in os.environ:
        with open(os.environ["TOY_LOG"], "a") as log:
            log.write(f"{i}\n")
    value = float("nan") if i in config.diverges else int(hashlib.sha256(str(unit).encode()).hexdigest()[:8], 16) / 7
    return [{"i": i, "part": part, "value": value} for part in range(config.size)]


def figures(rows):
    return {}


def claims(rows):
    return [Claim("all are there", f"{len(rows)} rows", len(rows) > 0)]


def tables(rows):
    return {"The values of <all> units.": [{"unit": row["i"], "value": row["value"]} for row in rows[:50]]}


STUDY = Study(
    name="toy",
    title="Toy",
    config=Config,
    run_unit=run_unit,
    figures=figures,
    captions={},
    claims=claims,
    row_modules=(sys.modules[__name__],),
    units=units,
    tables=tables,
)


def register():
    """Make `entryclip` know this study, in this process."""
    paper = sys.modules["entryclip.lab.paper"]

    sys.modules["entryclip.lab.paper.toy"] = sys.modules[__name__]
    paper.NAMES = (*paper.NAMES, "toy")


# Every Python process reads this first: the toy is registered when, and only when, the studies are imported.
SITE = """
import importlib.util, sys

class Register:
    def find_spec(self, name, path=None, target=None):
        if name != "entryclip.lab.paper":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def run_and_register(module):
            run(module)
            import toy
            toy.register()

        spec.loader.exec_module = run_and_register
        return spec

sys.meta_path.insert(0, Register())
"""


class Commands:
    """Runs `entryclip` in processes that know the toy, and so do their workers."""

    def __init__(self, folder: Path):
        self.out, self.log, site = folder / "out", folder / "log", folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(SITE)
        source = Path(entryclip.__file__).parents[1]
        path = os.pathsep.join(map(str, (site, Path(__file__).parent, source)))
        self.environment = {**os.environ, "PYTHONPATH": path, "TOY_LOG": str(self.log), "COLUMNS": "200"}

    def line(self, *arguments):
        return [sys.executable, "-m", "entryclip", *map(str, arguments), "--out", str(self.out)]

    def done(self):
        """The units really done so far, as often as they were."""
        return sorted(map(int, self.log.read_text().split())) if self.log.exists() else []

    def finished(self):
        return sorted((self.out / "toy" / "units").glob("*.json"))

    def wait_for(self, count, seconds=60):
        """Until so many units are on disk."""
        end = time.monotonic() + seconds
        while len(self.finished()) < count:
            assert time.monotonic() < end, f"{len(self.finished())} of {count} units after {seconds} s"
            time.sleep(0.02)
