"""`Job`: a study at one config under way, with the units it has, those still open, and those its rows call for next."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .runner import OnStale, Plan, plan
from .schema import BadFile
from .study import Row, Study, no_more_units
from .units import FinishedUnit, Outcome, State, Unit, collect, first_units


@dataclass
class Job:
    """A study at one config, on its way: its units grow as their rows call for more.

    A study is asked for more units when all of its own have ended, whatever other studies are at, and after every unit
    if it may be `asked_early`. Once a unit has failed it is not asked again.
    """

    study: Study[Any]
    config: Any
    folder: Path
    units: list[Unit] = field(default_factory=list)  # in the order in which they were named
    open: set[Path] = field(default_factory=set)  # files of the units that have not ended
    failed: bool = False
    _parts: dict[Path, FinishedUnit] = field(default_factory=dict)

    @property
    def may_grow(self) -> bool:
        """Whether the rows can call for more units."""
        return self.study.next_units is not no_more_units

    @property
    def ended(self) -> int:
        """The number of units that have ended."""
        return len(self.units) - len(self.open)

    def begin(self, on_stale: OnStale) -> Plan:
        """Take in the first units, and all those that rows on disk call for; returns which are there and which not."""
        return self._take_in(first_units(self.study, self.config, self.folder), on_stale)

    def take_outcome(self, outcome: Outcome, on_stale: OnStale) -> Plan:
        """Note that a unit has ended; returns the further units that the rows now call for."""
        self.open.discard(outcome.unit.path)
        self.failed |= outcome.state is State.FAILED
        return self._take_in(self._named_next(), on_stale)

    def parts(self) -> list[FinishedUnit]:
        """The finished units of a complete job, in an order that does not depend on when each of them ended."""
        if not self.study.asked_early:
            return self._read(self.units)
        units = first_units(self.study, self.config, self.folder)
        while more := self._called_for(units):
            units += more
        if early := {unit.path for unit in self.units} - {unit.path for unit in units}:
            raise ValueError(
                f"{self.study.name}: next_units named {len(early)} units early that the complete rows do not call for: "
                "a study whose choice needs all rows must leave asked_early=False"
            )
        return self._read(units)

    @contextmanager
    def rows_blamed(self) -> Iterator[None]:
        """Turn the error of a study that cannot read its rows into one line: files of units may come from anywhere."""
        try:
            yield
        except (LookupError, TypeError, AttributeError) as error:
            found, units = f"{type(error).__name__}: {error}", self.folder / "units"
            raise BadFile(
                f"{units} holds rows that {self.study.name} cannot read ({found}): remove that folder"
            ) from error

    def _take_in(self, units: list[Unit], on_stale: OnStale) -> Plan:
        """Add units, and what those of them that are on disk call for in turn."""
        found = Plan()
        while units:
            step = plan(units, on_stale=on_stale)
            self.units += units
            self.open |= {unit.path for unit in step.to_do}
            found = Plan(found.finished + step.finished, found.to_do + step.to_do, found.notes + step.notes)
            units = self._named_next()
        return found

    def _named_next(self) -> list[Unit]:
        """The units that the study, if it is to be asked now, names and that are not among its units yet."""
        if self.failed or not self.may_grow or (self.open and not self.study.asked_early):
            return []
        ended = [unit for unit in self.units if unit.path not in self.open]
        known = {unit.path for unit in self.units}
        return [unit for unit in self._called_for(ended) if unit.path not in known]

    def _called_for(self, units: Sequence[Unit]) -> list[Unit]:
        """The units, not among these, that the rows of these call for."""
        rows: list[Row] = [row for part in self._read(units) for row in part.rows]
        known = {unit.path for unit in units}
        with self.rows_blamed():
            pieces = self.study.next_units(self.config, rows)
        named = [Unit(self.study, self.config, piece, self.folder) for piece in pieces]
        return [unit for unit in named if unit.path not in known]

    def _read(self, units: Sequence[Unit]) -> list[FinishedUnit]:
        """The content of finished units, each read from disk once."""
        for unit in units:
            if unit.path not in self._parts:
                (self._parts[unit.path],) = collect([unit])
        return [self._parts[unit.path] for unit in units]
