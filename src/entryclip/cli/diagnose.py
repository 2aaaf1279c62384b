"""The command `entryclip diagnose`: does the gradient noise of your model call for entry-wise clipping?"""

import importlib.util
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from tyro.conf import arg

from .options import Folder, OptionalFolder
from .report import write_report
from .terminal import say

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..diagnostics import Report

Source = Annotated[str, arg(metavar="FILE.py:FUNCTION")]
Patterns = Annotated[tuple[str, ...], arg(metavar="PATTERN")]
Count = Annotated[int, arg(metavar="N")]


class Subject(NamedTuple):
    """What is diagnosed: the arguments of `probe`."""

    model: "nn.Module"
    loss: "Callable[[Any, Any], Tensor]"  # loss(model, batch)
    batches: Iterable[Any]


def diagnose(
    source: Source = "",
    /,
    checkpoint: OptionalFolder = None,
    data: OptionalFolder = None,
    where: Patterns = (),
    directions: Count = 8,
    samples: Count = 64,
    out: Folder = Path("out"),
) -> int:
    """Measure the gradient noise of a model, matrix by matrix: prints a table, saves rows and a section of the report.

    FILE.py is run as a program, with all your rights: give only files that you trust. A checkpoint runs no code.

    Args:
        source: a function without arguments that returns model, loss and batches, as model.py:make; loss(model, batch)
            is one number, and each batch is one sample of the noise; the file is run
        checkpoint: in place of the function: the --out of an `entryclip train`, or one checkpoint of it
        data: the folder of shards for --checkpoint; the one it was trained on unless given
        where: matrices to look at, by name, with wildcards: "blocks.*.attn.qkv_w.v"; all hidden ones unless given
        directions: singular directions of the gradient to look along
        samples: batches to take
        out: the folder for the results
    """
    from ..diagnostics import probe
    from ..lab.diagnosis import FOLDER, DiagnosisConfig, save_diagnosis
    from ..lab.engine.store import check_folder

    check_folder(out)
    name = _result_name(source, checkpoint)
    config = DiagnosisConfig(source or str(checkpoint), where, directions, samples)
    subject = from_checkpoint(checkpoint, data) if checkpoint is not None else from_file(source)
    start = time.perf_counter()
    with _progress() as progress:
        found = probe(*subject, where or None, directions, samples=samples, progress=progress)
    show(found)
    folder = out / FOLDER / name
    save_diagnosis(found, config, folder, time.perf_counter() - start)
    say(f"rows: {folder / 'rows.jsonl'}")
    return write_report(out)


def _result_name(source: str, checkpoint: Path | None) -> str:
    """Return the name of the results' folder; exactly one of the two sources must be given."""
    if bool(source) == (checkpoint is not None):
        raise ValueError("give a model as FILE.py:FUNCTION, or a trained one by --checkpoint FOLDER: one of the two")
    if checkpoint is not None:
        return checkpoint.resolve().name
    return f"{Path(source.rpartition(':')[0]).stem}-{source.rpartition(':')[2]}"


def from_checkpoint(checkpoint: Path, data: Path | None) -> Subject:
    """Load a model of `entryclip train`, with batches of its data that it was not trained on yet."""
    from ..lab.lm.train.probe_inputs import from_checkpoint as load

    return Subject(*load(checkpoint, data))


def from_file(source: str) -> Subject:
    """Call the function that `source`, FILE.py:FUNCTION, names, and check that it returns model, loss and batches."""
    name, colon, function = source.rpartition(":")
    path = Path(name)
    if not colon or not function.isidentifier() or path.suffix != ".py":
        raise ValueError(f"the model must be given as FILE.py:FUNCTION, got {source!r}")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    make = getattr(_import_file(path), function, None)
    if not callable(make):
        raise ValueError(f"{path} has no function {function}")
    made = _named_errors(make, source)()
    if not isinstance(made, tuple) or len(made) != 3:
        raise ValueError(f"{source} must return model, loss and batches, got {_kind(made)}")
    model, loss, batches = made
    for what, good, value in (
        ("a torch module", hasattr(model, "named_parameters"), model),
        ("a function loss(model, batch)", callable(loss), loss),
        ("batches to iterate over", hasattr(batches, "__iter__"), batches),
    ):
        if not good:
            raise ValueError(f"{source} must return {what} among the three, got {_kind(value)}")
    return Subject(model, _checked_loss(loss, source), batches)


def _checked_loss(loss: Callable[[Any, Any], Any], source: str) -> "Callable[[Any, Any], Tensor]":
    """Return the loss, with its errors and whatever else than one number with a graph as one line that names it."""
    from torch import Tensor

    named = _named_errors(loss, f"the loss of {source}")

    def checked(model: Any, batch: Any) -> Tensor:
        value = named(model, batch)
        if isinstance(value, Tensor) and value.numel() == 1 and value.requires_grad:
            return value
        got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else _kind(value)
        got += " without a graph" if isinstance(value, Tensor) and not value.requires_grad else ""
        raise ValueError(
            f"the loss of {source} must return one number as a tensor with its graph, got {got}: "
            "return the loss itself, as cross_entropy(...).mean(), without .item() or .detach()"
        )

    return checked


def _named_errors(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return the function, with any error of it as one line that names it, the error and where it was raised."""

    def called(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            words = " ".join(str(error).split()) or "no message"
            where = f"{Path(place.filename).name}, line {place.lineno}"
            raise ValueError(f"{name} raised {type(error).__name__} ({where}): {words}") from error

    return called


def _kind(value: object) -> str:
    """Describe a value by its type, for an error message."""
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__


def _import_file(path: Path) -> ModuleType:
    """Import a file as a module; it can import files beside it, as when it is run as a script."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def show(found: "Report") -> None:
    """Print the table (narrower in a narrow terminal), what its columns mean, entries that stand out and the answer."""
    from rich.console import Console

    from ..diagnostics.probe.legend import explain_columns, largest_entries, only_raw
    from ..diagnostics.probe.text_table import HEADINGS, NARROW, aligned

    console = Console()
    headings: tuple[str, ...] = HEADINGS
    if console.is_terminal and max(map(len, aligned(found.matrices).splitlines())) > console.width:
        headings = NARROW
    entries = [*largest_entries(found.matrices), *only_raw(found.matrices)]
    lines = [*aligned(found.matrices, headings).splitlines(), "", *explain_columns(headings), ""]
    lines += (
        ["the entries that stand out most from their rows and columns:", *(f"  {each}" for each in entries), ""]
        if entries
        else []
    )
    for line in [*lines, *found.summary()]:
        say(line)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar over the gradients; yield the function that `probe` calls with done and total."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("gradients"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, transient=True, disable=not Console().is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
