"""The commands: `entryclip reproduce NAME`, `theory`, `report DIR` and `data prepare`. Only here are paths read."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import experiments

if TYPE_CHECKING:
    from .theory import Guarantee


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code. Bad input is one line on standard error and exit code 2."""
    try:
        import tyro
    except ImportError:
        return _fail("the commands need more packages: pip install 'entryclip[experiments]'")
    app = tyro.extras.SubcommandApp()
    app.command(reproduce)
    app.command(theory)
    app.command(report)
    data = tyro.extras.SubcommandApp()
    data.command(prepare)
    app.command(data, name="data", help="Text to shards of tokens, for the language model.")
    try:
        app.cli(prog="entryclip", description="Spectral control of gradients by entry-wise clipping.", args=arguments)
    except (ValueError, OSError, ImportError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _fail("stopped", code=130)
    return 0


def reproduce(name: str, /, quick: bool = False, out: Path = Path("out")) -> None:
    """Rerun an experiment of the paper: its rows, figures, claims and a page with all of them.

    Args:
        name: an experiment (operators, learning-rate, bayes, looseness, convergence, noise-models, spectral-mse,
            spectral-control, tails), or all of them (all)
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
) -> None:
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


def report(results: Path = Path("out"), /) -> None:
    """Write one self-contained page about the results in a folder.

    Args:
        results: the folder that `entryclip reproduce` wrote to
    """
    from rich.console import Console

    from .report import write_page

    Console().print(f"report: {write_page(results)}", soft_wrap=True, highlight=False, markup=False)


def prepare(
    files: tuple[Path, ...] = (),
    /,
    out: Path = Path("data"),
    tokenizer: str = "bpe:4096",
    val_every: int = 50,
    shard_tokens: int = 100_000_000,
    gpt2_files: Path | None = None,
) -> None:
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
    from rich.console import Console
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
    Console().print(f"{said}, vocabulary {manifest['vocabulary']:,}", soft_wrap=True, highlight=False, markup=False)


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
