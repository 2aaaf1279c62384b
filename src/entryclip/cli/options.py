"""Types of options that several commands share, with the placeholder that --help shows for their value."""

from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from ..lab.engine.runner import OnStale, cores

Folder = Annotated[Path, arg(metavar="FOLDER")]
OptionalFolder = Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")]  # its help says the default
StudyName = Annotated[str, arg(metavar="STUDY")]
Jobs = Annotated[int, arg(metavar="N")]
Stale = Annotated[str, arg(metavar="{" + ",".join(OnStale) + "}")]
ONE_PER_CORE = cores()  # jobs, unless told otherwise
