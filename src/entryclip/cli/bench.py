"""The command `entryclip bench`: is it right on this machine, and how fast is it?"""

import dataclasses
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from tyro.conf import arg

from .terminal import check_choice, say

if TYPE_CHECKING:
    from ..lab.bench.proof import Proof
    from ..lab.bench.timing import Result

Device = Annotated[str, arg(metavar="{cpu,cuda}")]
T = TypeVar("T")
Parts = Annotated[tuple[str, ...], arg(metavar="PART")]
Json = Annotated[Path | None, arg(name="json", metavar="FILE")]


def bench(parts: Parts = ("steps",), /, device: Device = "cpu", quick: bool = False, json: Json = None) -> int:
    """Prove that the optimizers are right on this machine, then measure them beside torch's own.

    It needs no network and no data, and takes a few minutes. Exit code 1: a proof failed or a limit was not kept.

    Args:
        parts: what to measure: steps (optimizer steps), or on a CPU other parts of the library by name, or all of them
        device: where to run: cpu, or cuda (which is also what torch calls AMD's GPUs)
        quick: only the proofs
        json: a file for all of it, to send with a report
    """
    import torch

    check_choice("--device", device, ("cpu", "cuda"))
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no GPU here; install a CUDA or ROCm build of torch, or use cpu")
    from ..lab.bench import proofs
    from ..lab.bench.parts import check_parts, run

    chosen = check_parts(parts, device)
    shown = [*_tracked("proofs", proofs.run(device), 8)]
    measured = (
        [] if quick else [line for part in _tracked("times", iter(chosen), len(chosen)) for line in run(part, device)]
    )
    _show(shown, measured)
    if json is not None:
        _save(json, device, shown, measured)
    say(summary(device, shown, measured))
    return 0 if all(proof.held for proof in shown) and all(result.kept for result in measured) else 1


def summary(device: str, proofs: "list[Proof]", results: "list[Result]") -> str:
    """Return one line with all that matters, to be pasted into an issue."""
    import torch

    from .. import __version__

    ratios = ", ".join(f"{result.name.split(' / ')[0]} {result.ratio:.2f}" for result in results)
    made = [proof for proof in proofs if not proof.skipped]
    held = sum(proof.held for proof in made)
    where = f"{_processor(device)}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    return f"entryclip {__version__} bench on {where}: {held} of {len(made)} proofs hold; {ratios or 'no times'}"


def _processor(device: str) -> str:
    import torch

    return torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU of {os.cpu_count()} cores"


def _tracked(title: str, items: Iterator[T], total: int) -> Iterator[T]:
    from rich.progress import track

    yield from track(items, title, total=total, transient=True)


def _show(proofs: "list[Proof]", results: "list[Result]") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    first = Table("proof", "", "found")
    for proof in proofs:
        outcome = "skipped" if proof.skipped else "[green]holds[/]" if proof.held else "[red]fails[/]"
        first.add_row(proof.name, outcome, escape(proof.detail))
    second = Table("what", "ratio", "limit", "times")
    for result in results:
        colour = "green" if result.kept else "red"
        second.add_row(result.name, f"[{colour}]{result.ratio:.2f}[/]", limit_in_words(result), result.detail)
    Console().print(first, *([second] if results else []))


def limit_in_words(result: "Result") -> str:
    """Write the limit of a line, or a dash where it has none."""
    return "-" if result.limit is None else f"{'>=' if result.at_least else '<='} {result.limit:g}"


def _save(path: Path, device: str, proofs: "list[Proof]", results: "list[Result]") -> None:
    import torch

    from ..lab.engine.files import write_json

    machine = {"device": _processor(device), "threads": torch.get_num_threads(), "torch": torch.__version__}
    rows = [{**dataclasses.asdict(result), "kept": result.kept} for result in results]
    write_json(path, {"machine": machine, "proofs": [dataclasses.asdict(proof) for proof in proofs], "rows": rows})
    say(f"results: {path}")
