"""Fields of a study's config, and how they name saved results: also those of fewer fields, or of fewer units."""

import dataclasses
from typing import Any

_ADDED, _EXTENT = "added", "extent"


def added_field(default: Any) -> Any:
    """Return a field of a config that was added after results had been saved, for a dataclass's body.

    Results are named by the fields of their config. At its default an added field does not count, so that results
    from before it keep their names; its default must be what was done then.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Config:
    ...     steps: int = 10
    ...     warmup: int = added_field(0)
    >>> naming_fields(Config()), naming_fields(Config(warmup=5))
    ({'steps': 10}, {'steps': 10, 'warmup': 5})
    """
    return dataclasses.field(default=default, metadata={_ADDED: True})


def extent_field(default: Any) -> Any:
    """Return a field of a config that says which units a study has, and nothing of what one of them does.

    Units are not named by it, so a study that is given more seeds or methods goes on with the units that are there.
    What a unit is, its seed and method, must be said by its piece.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Config:
    ...     steps: int = 10
    ...     seeds: int = extent_field(3)
    >>> unit_fields(Config()), naming_fields(Config())
    ({'steps': 10}, {'steps': 10, 'seeds': 3})
    """
    return dataclasses.field(default=default, metadata={_EXTENT: True})


def unit_fields(config: Any) -> dict[str, Any]:
    """Return the fields of a config that name a unit: those that name the study's results, less its extent."""
    extent = {field.name for field in dataclasses.fields(config) if field.metadata.get(_EXTENT)}
    return {name: value for name, value in naming_fields(config).items() if name not in extent}


def naming_fields(config: Any) -> dict[str, Any]:
    """Return the fields of a config, a dataclass, that name its results: all but added ones at their defaults."""
    values = dataclasses.asdict(config)
    added = [field for field in dataclasses.fields(config) if field.metadata.get(_ADDED)]
    unchanged = {field.name for field in added if values[field.name] == field.default}
    return {name: value for name, value in values.items() if name not in unchanged}
