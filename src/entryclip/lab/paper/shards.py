"""The shards of tokens that a study of the language model reads."""

from pathlib import Path
from typing import Protocol

from ..engine.study import DataSource
from ..lm.data.manifest import content_hash


class HasShards(Protocol):
    """A config that names a folder of shards."""

    def folder(self) -> Path: ...


def shards(config: HasShards) -> DataSource:
    """The folder of shards and a hash of what its manifest says of them; FileNotFoundError where there are none."""
    folder = config.folder()
    return DataSource(folder, content_hash(folder))
