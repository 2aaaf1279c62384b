"""`entryclip report`: the page about a folder of results, or two training runs side by side in the terminal."""

from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from .terminal import fail, say

Folders = Annotated[tuple[Path, ...], arg(metavar="FOLDER")]


def report(results: Folders = (Path("out"),), /) -> int:
    """Write one self-contained page about the results in a folder, or compare training runs.

    With one folder: the page, with its studies, sweeps, diagnoses and training runs. With several, each the --out of an
    `entryclip train`: their settings that differ and their losses are printed, compared with the first.

    Args:
        results: the folder that the other commands wrote to, or the folders of training runs
    """
    return compare_runs(results) if len(results) > 1 else write_report(results[0] if results else Path("out"))


def write_report(results: Path) -> int:
    """Write the page about a folder, say where it is, and return the exit code: 2 where results are damaged."""
    from ..lab.report import write_page

    page = write_page(results)
    say(f"report: {page.path}")
    return max((fail(line) for line in page.damaged), default=0)


def compare_runs(folders: tuple[Path, ...]) -> int:
    """Print the settings in which training runs differ, and their losses beside that of the first."""
    from ..lab.report.training_runs import is_run, load_run
    from ..lab.report.training_runs_section import comparison_rows, differing_settings

    for folder in folders:
        if not is_run(folder):
            raise ValueError(f"{folder} is no training run: give folders that `entryclip train --out` wrote to")
    runs = [load_run(folder, str(folder)) for folder in folders]
    for rows in (differing_settings(runs), comparison_rows(runs)):
        _show(rows)
    return 0


def _show(rows: list[dict[str, object]]) -> None:
    """Print rows as a table, all as text."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from ..lab.engine.printable import printable

    if rows:
        table = Table(*rows[0])
        for row in rows:
            table.add_row(*(escape(printable(_text(value))) for value in row.values()))
        Console().print(table)


def _text(value: object) -> str:
    if value is None:
        return "-"
    return (
        f"{value:.4f}"
        if isinstance(value, float) and abs(value) < 100
        else f"{value:,.0f}"
        if isinstance(value, float)
        else str(value)
    )
