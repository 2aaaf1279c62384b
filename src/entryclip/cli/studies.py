"""`entryclip reproduce` and `entryclip sweep`: run studies, show their progress, claims and failures."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from tyro.conf import arg

from ..lab import paper
from ..lab.engine.printable import printable
from ..lab.engine.runner import Backend, OnStale
from .options import ONE_PER_CORE, Folder, Jobs, Stale, StudyName
from .report import write_report
from .terminal import check_choice, say

if TYPE_CHECKING:
    from ..lab.engine.reproduce import Options
    from ..lab.engine.units import Outcome

Command = TypeVar("Command", bound=Callable[..., object])
Fields = Annotated[tuple[tuple[str, ...], ...], arg(metavar="FIELD=V1,V2 ...")]
Changes = Annotated[tuple[tuple[str, ...], ...], arg(name="set", metavar="FIELD=VALUE ...")]
BackendName = Annotated[str, arg(metavar="{" + ",".join(Backend) + "}")]
Cluster = Annotated[str, arg(metavar="ADDRESS")]


def _lists_studies(command: Command) -> Command:
    """Put the names of all studies into the command's help."""
    command.__doc__ = (command.__doc__ or "").replace("NAMES", ", ".join(paper.NAMES))
    return command


@_lists_studies
def reproduce(
    name: StudyName,
    /,
    quick: bool = False,
    out: Folder = Path("out"),
    jobs: Jobs = ONE_PER_CORE,
    stale: Stale = "refuse",
    changes: Changes = (),
) -> int:
    """Rerun a study of the paper: its rows, figures, claims and a page with all of them.

    It can be stopped at any time: the same command goes on where it was.

    Args:
        name: a study (NAMES), or all of them (all)
        quick: the small version, for a first look
        out: the folder for the results
        jobs: processes at a time; one per core by default
        stale: what to do with results of other code or versions: refuse, recompute or keep
        changes: fields of the study's config that differ from their defaults, as steps=100
    """
    from ..lab.engine.grid import single_values
    from ..lab.engine.reproduce import reproduce_all

    names = paper.NAMES if name == "all" else (paper.check_name(name),)
    if changes and name == "all":
        raise ValueError("--set is for one study: each has its own fields")
    with _options(out, quick, jobs, stale) as options:
        if changes:
            options.changes = single_values(paper.find(name), [each for several in changes for each in several])
        failed = reproduce_all([paper.find(each) for each in names], out, options)
    _show_failures(failed)
    there = [each for each in names if (out / each / "record.json").exists()]
    _show_claims(out, there)
    if failed and not there:
        return 1  # there may be nothing to report on
    return write_report(out) or bool(failed)


@_lists_studies
def sweep(
    name: StudyName,
    /,
    over: Fields = (),
    quick: bool = False,
    out: Folder = Path("out"),
    jobs: Jobs = ONE_PER_CORE,
    stale: Stale = "refuse",
    backend: BackendName = "loky",
    cluster: Cluster = "",
) -> int:
    """Run a study for every combination of values of its config's fields.

    It can be stopped at any time: the same command goes on where it was.

    Args:
        name: a study (NAMES)
        over: fields and their values: field=v1,v2 other=v3,v4; a field of several numbers joins them by colons
        quick: start from the small config
        out: the folder for the results; on a cluster, one that all machines share
        jobs: processes at a time; one per core by default
        stale: what to do with results of other code or versions: refuse, recompute or keep
        backend: where to run: loky (processes here), dask or ray
        cluster: the address of a Dask scheduler or Ray head; one is started here unless given
    """
    from ..lab.engine.grid import grid
    from ..lab.engine.sweep import sweep as run

    study = paper.find(name)
    values = grid(study, [each for several in over for each in several])
    check_choice("--backend", backend, tuple(Backend))
    with _options(out, quick, jobs, stale) as options:
        folder, failed = run(study, values, out, options, backend=Backend(backend), cluster=cluster or None)
    _show_failures(failed)
    say(f"rows: {folder / 'rows.jsonl'}")
    return write_report(out) or bool(failed)


@contextmanager
def _options(out: Path, quick: bool, jobs: int, stale: str) -> Iterator["Options"]:
    """Check the options of a command, and show a progress bar with the remaining time while it runs."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from ..lab.engine.reproduce import Options
    from ..lab.engine.store import check_folder

    if jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {jobs}")
    check_choice("--stale", stale, tuple(OnStale))
    check_folder(out)
    times = TimeElapsedColumn(), TextColumn("to go"), TimeRemainingColumn()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *times
    with Progress(*columns, transient=True, disable=not Console().is_terminal) as bar:
        task = bar.add_task("units", total=None)

        def print_above(line: str) -> None:
            bar.console.print(printable(line), soft_wrap=True, highlight=False, markup=False)

        def advance(outcome: "Outcome") -> None:
            bar.update(task, advance=1, description=outcome.unit.study.name)

        def start(finished: int, total: int) -> None:
            bar.update(task, total=total, completed=finished)

        yield Options(quick, jobs, OnStale(stale), say=print_above, started=start, progress=advance)


def _show_failures(failed: Sequence["Outcome"]) -> None:
    for each in failed:
        sys.stderr.write(printable(f"failed: {each.unit}: {each.reason} (more in {each.unit.failure})") + "\n")
    if failed:
        sys.stderr.write(f"{len(failed)} units failed; the others are kept, and the same command tries again\n")


def _show_claims(results: Path, names: Sequence[str]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from ..lab.engine.store import load_record

    table = Table("study", "claim", "measured", "", title="Claims, and what was measured")
    for name in names:
        for claim in load_record(results / name).claims:
            verdict = "[green]holds[/]" if claim.holds else "[red]does not hold[/]"
            table.add_row(name, escape(printable(claim.claim)), escape(printable(claim.measured)), verdict)
    if table.row_count:
        Console().print(table)
