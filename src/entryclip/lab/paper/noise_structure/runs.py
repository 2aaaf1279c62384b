"""The measured noise by run: the rows of each, by stage of its training and by matrix."""

from collections.abc import Iterable

from ...engine.study import Row

Stages = dict[int, dict[str, Row]]  # by step and name of the matrix


def by_run(rows: Iterable[Row]) -> dict[int, Stages]:
    """Gather the rows of all matrices that were measured, by seed of the run, step and name.

    Rows of earlier versions, which had one run alone, do not name its seed.
    """
    found: dict[int, Stages] = {}
    for row in rows:
        if row["kind"] == "matrix" and row["r_hat"]:
            found.setdefault(row.get("seed", 1), {}).setdefault(row["step"], {})[row["matrix"]] = row
    return found


def first_run(rows: Iterable[Row]) -> Stages:
    """Return the stages of the first run, which the figures of single matrices show."""
    return next(iter(by_run(rows).values()))
