"""Run an experiment and leave its rows, figures and record in a folder."""

import time
from pathlib import Path

from . import find
from .store import save_record, save_rows


def reproduce(name: str, results: Path, *, quick: bool = False) -> Path:
    """Run the experiment `name`, at its quick setting or the full one, into `results/name`."""
    from .figures import save

    module = find(name)
    config = module.Config.quick() if quick else module.Config()
    start = time.monotonic()
    rows = list(module.run(config))
    folder = results / name
    save_rows(folder, rows)
    for figure, drawing in module.plot(rows).items():
        save(drawing, folder, figure)
    save_record(folder, name, config, time.monotonic() - start, module.claims(rows))
    return folder
