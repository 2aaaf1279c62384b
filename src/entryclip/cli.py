"""The commands: `entryclip reproduce`, `sweep`, `theory`, `report`, `data prepare`. Only here are paths read."""

import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from . import experiments
from .experiments.runner import BACKENDS, STALE, cores

if TYPE_CHECKING:
    from .experiments.reproduce import Options
    from .experiments.units import Outcome
    from .theory import Guarantee

Command = TypeVar("Command", bound=Callable[..., object])
DESCRIPTION = "Spectral control of gradients by entry-wise clipping: the paper's experiments and what came of them."
PLACES = {  # how --help shows what is to be put in
    "name": "EXPERIMENT",
    "over": "FIELD=V1,V2 ...",
    "out": "FOLDER",
    "results": "FOLDER",
    "jobs": "N",
    "stale": "{refuse,recompute,keep}",
    "backend": "{loky,dask,ray}",
    "cluster": "ADDRESS",
}


class Stopped(BaseException):
    """A signal has asked us to end."""

    def __init__(self, number: int) -> None:
        self.number = number


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code. Bad input is one line on standard error and exit code 2.

    1: a unit failed. 128 + a signal's number: stopped by it.
    """
    try:
        import tyro
    except ImportError:
        return _fail("the commands need more packages: pip install 'entryclip[experiments]'")
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    app = tyro.extras.SubcommandApp()
    for command in (reproduce, sweep, theory, report):
        _show_places(command, tyro.conf.arg)
        app.command(command)
    data = tyro.extras.SubcommandApp()
    data.command(prepare)
    app.command(data, name="data", help="Text to shards of tokens, for the language model.")
    try:
        with _signals():
            settings = tyro.conf.FlagCreatePairsOff, tyro.conf.UseAppendAction
            return int(app.cli(prog="entryclip", description=DESCRIPTION, args=arguments, config=settings))
    except (ValueError, OSError, ImportError) as error:
        return _fail(str(error))
    except Stopped as stop:
        again = shlex.join(["entryclip", *arguments])
        return _fail(f"stopped; what is finished is kept, and the same command goes on: {again}", 128 + stop.number)


def _show_places(command: Callable[..., object], arg: Callable[..., Any]) -> None:
    """Put `PLACES` into the annotations, where tyro looks for them; here, as tyro is needed by the commands alone."""
    hints = command.__annotations__
    for key in hints.keys() & PLACES:
        if not hasattr(hints[key], "__metadata__"):
            hints[key] = Annotated[hints[key], arg(metavar=PLACES[key])]


def _lists_experiments(command: Command) -> Command:
    command.__doc__ = (command.__doc__ or "").replace("NAMES", ", ".join(experiments.NAMES))
    return command


@_lists_experiments
def reproduce(
    name: str, /, quick: bool = False, out: Path = Path("out"), jobs: int = cores(), stale: str = "refuse"
) -> int:
    """Rerun an experiment of the paper: its rows, figures, claims and a page with all of them.

    It can be stopped at any time: the same command goes on where it was.

    Args:
        name: an experiment (NAMES), or all of them (all)
        quick: the small version, for a first look
        out: the folder for the results
        jobs: processes at a time; one per core by default
        stale: what to do with results of other code or versions: refuse, recompute or keep
    """
    from .experiments.reproduce import reproduce_all

    names = experiments.NAMES if name == "all" else (experiments.check_name(name),)
    with _options(out, quick, jobs, stale) as options:
        failed = reproduce_all(names, out, options)
    _show_failures(failed)
    _show_claims(out, [each for each in names if (out / each / "record.json").exists()])
    return report(out) or bool(failed)


@_lists_experiments
def sweep(
    name: str,
    /,
    over: tuple[tuple[str, ...], ...] = (),
    quick: bool = False,
    out: Path = Path("out"),
    jobs: int = cores(),
    stale: str = "refuse",
    backend: str = "loky",
    cluster: str = "",
) -> int:
    """Run an experiment for every combination of values of its config's fields.

    It can be stopped at any time: the same command goes on where it was.

    Args:
        name: an experiment (NAMES)
        over: fields and their values: field=v1,v2 other=v3,v4; a field of several numbers joins them by colons
        quick: start from the small config
        out: the folder for the results; on a cluster, one that all machines share
        jobs: processes at a time; one per core by default
        stale: what to do with results of other code or versions: refuse, recompute or keep
        backend: where to run: loky (processes here), dask or ray
        cluster: the address of a Dask scheduler or Ray head; one is started here unless given
    """
    from .experiments.sweep import grid
    from .experiments.sweep import sweep as run

    values = grid(experiments.check_name(name), [each for several in over for each in several])
    _check_choice("--backend", backend, BACKENDS)
    with _options(out, quick, jobs, stale) as options:
        folder, failed = run(name, values, out, options, backend=backend, cluster=cluster or None)
    _show_failures(failed)
    _say(f"rows: {folder / 'rows.jsonl'}")
    return report(out) or bool(failed)


def theory(
    *,
    alpha: float,
    sigma: float,
    gamma: float,
    bound: float,
    shape: str,
    smoothness: float = 1.0,
    gap: float = 1.0,
    epsilon: float | None = None,
    iterations: int | None = None,
    batch: int | None = None,
) -> int:
    """Print what the four convergence theorems say: thresholds, step sizes, iterations, and how loose their bounds are.

    Args:
        alpha: fraction of heavy-tailed entries in the noise (1-alpha) N(0, sigma^2) + alpha Cauchy(gamma)
        sigma: scale of the Gaussian part
        gamma: scale of the Cauchy part
        bound: largest absolute entry of the true gradient
        shape: of the matrix, as 768x768
        smoothness: L of the objective, in the Frobenius norm
        gap: f(X_0) - inf f
        epsilon: target for the mean gradient norm (default 0.1)
        iterations: how many there are, instead of a target
        batch: samples per iteration of pre-clipping, with iterations
    """
    from .noise import Cauchy, Contamination
    from .theory import guarantee

    noise, sides = Contamination(alpha, sigma, Cauchy(gamma)), _parse_shape(shape)
    if iterations is None and epsilon is None:
        epsilon = 0.1
    found = [
        guarantee(
            *(stage, operator, noise),
            bound=bound,
            shape=sides,
            smoothness=smoothness,
            gap=gap,
            epsilon=epsilon,
            iterations=iterations,
            batch=batch if stage == "pre" else None,
        )
        for stage in ("post", "pre")
        for operator in ("hard", "smooth")
    ]
    _show_guarantees(found)
    return 0


def report(results: Path = Path("out"), /) -> int:
    """Write one self-contained page about the results in a folder.

    Args:
        results: the folder that the other commands wrote to
    """
    from .report import write_page

    _say(f"report: {write_page(results)}")
    return 0


def prepare(
    files: tuple[Path, ...] = (),
    /,
    out: Path = Path("data"),
    tokenizer: str = "bpe:4096",
    val_every: int = 50,
    shard_tokens: int = 100_000_000,
    gpt2_files: Path | None = None,
) -> int:
    """Turn text into shards of tokens: the same bytes for the same text; run again, it goes on where it was stopped.

    Args:
        files: texts, JSONL with a "text" per line (both also as .gz or .xz), or folders of them; none: the Python
            standard library's own source
        out: the folder for the shards and their manifest
        tokenizer: gpt2, bpe:N (trained on the text) or bytes
        val_every: one of so many documents is for validation
        shard_tokens: tokens per shard
        gpt2_files: the folder of encoder.json and vocab.bpe, where tiktoken cannot fetch them
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    from .lm.prepare import prepare as run

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn()
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task("", total=None)
        manifest = run(
            *(files, out),
            tokenizer=tokenizer,
            val_every=val_every,
            shard_tokens=shard_tokens,
            gpt2_files=gpt2_files,
            progress=lambda what, done, total: bar.update(task, description=what, completed=done, total=total),
        )
    counts = [sum(s["tokens"] for s in manifest["shards"] if s["split"] == split) for split in ("train", "val")]
    said = f"data: {out}: {counts[0]:,} tokens to train on, {counts[1]:,} for validation"
    _say(f"{said}, vocabulary {manifest['vocabulary']:,}")
    return 0


def _parse_shape(text: str) -> tuple[int, int]:
    sides = text.split("x")
    if len(sides) != 2 or not all(side.isdecimal() for side in sides):
        raise ValueError(f"--shape must be rows x columns, as 768x768, got {text!r}")
    return int(sides[0]), int(sides[1])


def _show_guarantees(found: Sequence["Guarantee"]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", *(f"{each.stage}, {each.operator}" for each in found), title="The four convergence theorems")
    exact = [each.exact for each in found]
    rows: dict[str, list[str]] = {
        "threshold": [f"{each.threshold:.4g}" for each in found],
        "rho <=": [f"{each.rho:.3g}" for each in found],
        "rho, exact": [f"{each.rho:.3g}" for each in exact],
        "variance <=": [f"{each.variance:.4g}" for each in found],
        "variance, exact": [f"{each.variance:.4g}" for each in exact],
        "step size": [f"{each.step_size:.3g}" for each in found],
        "iterations": [f"{each.iterations:.4g}" for each in found],
        "batch": [f"{each.batch:.4g}" for each in found],
        "samples": [f"{each.samples:.4g}" for each in found],
        "norm": ["Frobenius" if each.stage == "post" else "nuclear" for each in found],
        "mean gradient norm <=": [f"{each.stationarity:.4g}" for each in found],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells)
    Console().print(table)


@contextmanager
def _options(out: Path, quick: bool, jobs: int, stale: str) -> Iterator["Options"]:
    """Checked, and with a progress bar that shows the time to go."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from .experiments.reproduce import Options
    from .experiments.store import check_folder

    if jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {jobs}")
    _check_choice("--stale", stale, STALE)
    check_folder(out)
    times = TimeElapsedColumn(), TextColumn("to go"), TimeRemainingColumn()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *times
    with Progress(*columns, transient=True, disable=not Console().is_terminal) as bar:
        task = bar.add_task("units", total=None)

        def say(line: str) -> None:
            bar.console.print(line, soft_wrap=True, highlight=False, markup=False)

        def advance(outcome: "Outcome") -> None:
            bar.update(task, advance=1, description=outcome.unit.experiment)

        def start(finished: int, total: int) -> None:
            bar.update(task, total=total, completed=finished)

        yield Options(quick, jobs, stale, say=say, started=start, progress=advance)


def _check_choice(option: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{option} must be one of {', '.join(allowed)}, got {value!r}")


def _show_failures(failed: Sequence["Outcome"]) -> None:
    for each in failed:
        sys.stderr.write(f"failed: {each.unit}: {each.reason} (more in {each.unit.failure})\n")
    if failed:
        sys.stderr.write(f"{len(failed)} units failed; the others are kept, and the same command tries again\n")


def _show_claims(results: Path, names: Sequence[str]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from .experiments.store import load_record

    table = Table("experiment", "claim", "measured", "", title="Claims, and what was measured")
    for name in names:
        for claim in load_record(results / name)["claims"]:
            verdict = "[green]holds[/]" if claim["holds"] else "[red]does not hold[/]"
            table.add_row(name, escape(claim["claim"]), escape(claim["measured"]), verdict)
    Console().print(table)


def _say(line: str) -> None:
    from rich.console import Console

    Console().print(line, soft_wrap=True, highlight=False, markup=False)


@contextmanager
def _signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the work in an orderly way: `Stopped` rises through it."""

    def stop(number: int, _: FrameType | None) -> Any:
        signal.signal(number, signal.SIG_IGN)  # once is enough; a second one must not break the tidying
        raise Stopped(number)

    try:
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: the caller's signals are the caller's
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _fail(message: str, code: int = 2) -> int:
    sys.stderr.write(f"entryclip: {message}\n")
    return code
