"""`Study`: everything the engine has to know of one study, in one frozen object."""

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]  # one measurement: plain JSON numbers, texts and lists
Piece = dict[str, Any]  # the description of one unit of work, as JSON can hold it


class HasQuick(Protocol):
    """A config class: a frozen dataclass whose fields all have defaults, and whose `quick()` takes seconds to run."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @classmethod
    def quick(cls) -> Self: ...


C = TypeVar("C", bound=HasQuick)


@dataclass(frozen=True)
class Claim:
    """A statement about the rows, the numbers that were measured, and whether these bear it out."""

    claim: str
    measured: str
    holds: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "holds", bool(self.holds))  # numpy's booleans are not JSON


class DataSource(NamedTuple):
    """A folder of data that a study reads, and a hash of its content."""

    folder: Path
    content: str


def one_unit(config: Any) -> Sequence[Piece]:
    """The whole study is a single unit."""
    return [{}]


def no_more_units(config: Any, rows: Sequence[Row]) -> Sequence[Piece]:
    """No unit depends on the rows of others."""
    return []


def no_tables(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """The study shows no tables."""
    return {}


def no_data(config: Any) -> DataSource | None:
    """The study reads no data from disk."""
    return None


@dataclass(frozen=True)
class Study(Generic[C]):
    """A study: how its rows are made, and how they are drawn and judged.

    run_unit     the rows of one unit of work
    units        descriptions of the independent units; each is one file on disk, so a stopped run goes on from there
    next_units   further units that the rows so far call for, such as runs at the best learning rate; asked again until
                 it names nothing new
    asked_early  whether `next_units` may be asked while units are under way, with the rows of those that have ended:
                 what it names then it must name once all have ended, too. So no core waits for the slowest unit
    figures      the figures by name; it imports matplotlib inside, so that worker processes need not load it
    captions     a caption for each figure's name
    claims       what the paper or the docs say, beside what was measured
    tables       rows for the report page, by caption
    data         the data that is read, to notice when it changes; FileNotFoundError counts as no data
    row_modules  the modules whose code makes the rows. Saved rows are stale once these, or modules of the package that
                 they import, have changed. The modules of `figures`, `claims` and `tables` do not belong here: another
                 colour needs no new rows.

    A study can be sent to another process: its modules are pickled by name, and its functions as usual.
    """

    name: str
    title: str
    config: type[C]
    run_unit: Callable[[C, Piece], Iterable[Row]]
    figures: "Callable[[Sequence[Row]], Mapping[str, Figure]]"
    captions: Mapping[str, str]
    claims: Callable[[Sequence[Row]], list[Claim]]
    row_modules: tuple[ModuleType, ...]
    units: Callable[[C], Sequence[Piece]] = one_unit
    next_units: Callable[[C, Sequence[Row]], Sequence[Piece]] = no_more_units
    asked_early: bool = False
    tables: Callable[[Sequence[Row]], Mapping[str, list[Row]]] = no_tables
    data: Callable[[C], DataSource | None] = no_data

    def configured(self, *, quick: bool = False, changes: Mapping[str, Any] | None = None) -> C:
        """The study's config, quick or full, with the fields in `changes` replaced."""
        return dataclasses.replace(self.config.quick() if quick else self.config(), **(changes or {}))

    def present_data(self, config: C) -> DataSource | None:
        """The data as it is now; None where the study needs none, or it is not there."""
        try:
            return self.data(config)
        except FileNotFoundError:
            return None

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        modules = [module.__name__ for module in fields.pop("row_modules")]
        return _unpickled, (fields, modules)


def _unpickled(fields: dict[str, Any], modules: list[str]) -> Study[Any]:
    return Study(**fields, row_modules=tuple(importlib.import_module(name) for name in modules))
