"""Rows as a pandas frame."""

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from .store import load_rows

if TYPE_CHECKING:
    import pandas


def load(folder: str | PathLike[str]) -> "pandas.DataFrame":
    """Read the rows that `entryclip reproduce` or `entryclip sweep` left in a study's folder; None becomes NaN.

    >>> import tempfile
    >>> from entryclip import lab
    >>> from entryclip.lab.engine.reproduce import reproduce
    >>> with tempfile.TemporaryDirectory() as results:
    ...     frame = lab.load(reproduce(lab.paper.find("operators"), Path(results), quick=True))
    >>> frame.groupby("operator")["output"].max().round(2).to_dict()
    {'hard_clip': 1.0, 'smooth_shrinkage': 0.37, 'soft_threshold': 5.0}
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError("frames need pandas: pip install 'entryclip[lab]'") from error
    if not (Path(folder) / "rows.jsonl").exists():
        raise FileNotFoundError(f"no rows in {folder}: it is one study's folder, as out/operators, once it has run")
    return pandas.DataFrame(load_rows(Path(folder)))
