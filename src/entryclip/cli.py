"""The commands: `entryclip reproduce NAME` and `entryclip report DIR`. Only here are paths read."""

import sys
from collections.abc import Sequence
from pathlib import Path

from . import experiments


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code. Bad input is one line on standard error and exit code 2."""
    try:
        import tyro
    except ImportError:
        return _fail("the commands need more packages: pip install 'entryclip[experiments]'")
    app = tyro.extras.SubcommandApp()
    app.command(reproduce)
    app.command(report)
    try:
        app.cli(prog="entryclip", description="Spectral control of gradients by entry-wise clipping.", args=arguments)
    except (ValueError, OSError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _fail("stopped", code=130)
    return 0


def reproduce(name: str, /, quick: bool = False, out: Path = Path("out")) -> None:
    """Rerun an experiment of the paper: its rows, figures, claims and a page with all of them.

    Args:
        name: an experiment (operators, learning-rate, noise-models, spectral-mse, spectral-control, tails), or all
        quick: the small version, for a first look
        out: the folder for the results
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from .experiments.reproduce import reproduce as run
    from .experiments.store import check_folder

    names = experiments.NAMES if name == "all" else (experiments.check_name(name),)
    check_folder(out)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task("", total=len(names))
        for each in names:
            progress.update(task, description=each)
            run(each, out, quick=quick)
            progress.advance(task)
    _show_claims(out, names)
    report(out)


def report(results: Path = Path("out"), /) -> None:
    """Write one self-contained page about the results in a folder.

    Args:
        results: the folder that `entryclip reproduce` wrote to
    """
    from rich.console import Console

    from .report import write_page

    Console().print(f"report: {write_page(results)}", soft_wrap=True, highlight=False, markup=False)


def _show_claims(results: Path, names: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    from .experiments.store import load_record

    table = Table("experiment", "claim", "measured", "", title="Claims, and what was measured")
    for name in names:
        for claim in load_record(results / name)["claims"]:
            verdict = "[green]holds[/]" if claim["holds"] else "[red]does not hold[/]"
            table.add_row(name, claim["claim"], claim["measured"], verdict)
    Console().print(table)


def _fail(message: str, code: int = 2) -> int:
    sys.stderr.write(f"entryclip: {message}\n")
    return code
