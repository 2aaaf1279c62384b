"""`entryclip train`: one training run, with a progress bar; `torchrun ... -m entryclip train` for several processes."""

import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro
from tyro.conf import arg

from ..lab.engine.allocator import keep_freed_memory
from ..lab.engine.files import alone
from ..lab.lm.train.settings import Settings
from ..lab.lm.train.training_methods import TRAINING_METHODS
from .options import Folder, OptionalFolder
from .progress_lines import ProgressLines
from .terminal import check_choice, fail, say

if TYPE_CHECKING:
    from ..lab.lm.train.run import Run, StepCallback
    from ..lab.lm.train.trainer import Trainer

PRESETS: dict[str, Callable[..., Settings]] = {
    "small": Settings,
    "paper": Settings.paper,
    "snapshot": Settings.snapshot,
    "quick": Settings.quick,
}


def _changes() -> Any:
    """Make a dataclass of the fields of `Settings`, all optional, with their help from its docstring."""
    lines = re.findall(r"^    (\w[\w, ]*?)  +(.+)$", Settings.__doc__ or "", re.MULTILINE)
    helps = {name: text for names, text in lines for name in names.split(", ")}
    helps["method"] = f"one of {', '.join(TRAINING_METHODS)}"
    kinds = get_type_hints(Settings)
    fields: list[Any] = [
        (name, Annotated[kinds[name] | None, _option(name, helps[name], kinds[name])], None)
        for name in (field.name for field in dataclasses.fields(Settings))
        if name != "clip_where"
    ]
    where = Annotated[tuple[str, ...], _option("clip_where", helps["clip_where"], str)]  # may be given several times
    return dataclasses.make_dataclass("Changes", [*fields, ("clip_where", where, ())], frozen=True)


def _option(name: str, text: str, kind: Any) -> Any:
    """Describe an option by its text, its choices, and the value that it has in every preset unless given."""
    words, _, default = text.partition(" (default: ")
    hint = f"(default: {_defaults(name, default.rstrip(')'))})"
    return arg(metavar=_placeholder(name, kind), help=words, help_behavior_hint=hint)


def _placeholder(name: str, kind: Any) -> str:
    """Return what the help shows for an option's value: its choices, N for a whole number, X for another."""
    if get_origin(kind) is Literal:
        return "{" + ",".join(get_args(kind)) + "}"
    if kind is bool:
        return "{True,False}"
    if kind is str:
        return {"method": "METHOD"}.get(name, "PATTERN")
    return "N" if kind is int else "X"


def _defaults(name: str, unset: str) -> str:
    """Say the default of an option, and the presets in which it is another; `unset` says what None means."""
    values = {preset: getattr(make(), name) for preset, make in PRESETS.items()}
    shown = {preset: unset if value is None else str(value) for preset, value in values.items()}
    others = [f"{preset}: {value}" for preset, value in shown.items() if value != shown["small"]]
    return "; ".join([shown["small"], *others])


Changes: Any = _changes()


def train(
    *,
    preset: Annotated[str, arg(metavar="{" + ",".join(PRESETS) + "}")] = "small",
    quick: bool = False,
    data: OptionalFolder = None,
    out: Folder = Path("out/train"),
    save_every: Annotated[int, arg(metavar="N")] = 100,
    keep: Annotated[int, arg(metavar="N")] = 2,
    start_from: OptionalFolder = None,
    weights_from: OptionalFolder = None,
    strategy: Annotated[str, arg(metavar="{ddp,fsdp}")] = "ddp",
    timeout: Annotated[float, arg(metavar="SECONDS")] = 600,
    tensorboard: bool = False,
    stale: Annotated[str, arg(metavar="{refuse,keep}")] = "refuse",
    changes: Annotated[Changes, tyro.conf.OmitArgPrefixes] = Changes(),  # noqa: B008 - frozen
) -> int:
    """Train a language model by one of the paper's methods. Stopped at any time, the same command continues.

    Args:
        preset: the settings that the options below start from: small (for a CPU), paper (276M), snapshot (the
            speed-run's) or quick
        quick: the same as --preset quick: seconds, for a first look
        data: the folder of shards, from `entryclip data`; default: the source of Python's standard library
        out: the folder for rows, the figure and checkpoints
        save_every: steps between checkpoints; 0: only at the end
        keep: number of checkpoints to keep; 0: all
        start_from: a checkpoint, or the --out of another run: go on from its step, weights and moments, but with these
            settings
        weights_from: a checkpoint, or the --out of another run: begin with its weights alone, as in fine-tuning
        strategy: under torchrun: ddp, or fsdp to shard the model over the processes
        timeout: seconds after which a process gives up waiting for one that is gone
        tensorboard: also write scalars to the folder tensorboard in --out
        stale: whether to continue from a checkpoint of other code or package versions: refuse or keep
        changes: settings that differ from the preset's
    """
    from ..lab.lm.train.distributed import connected_processes
    from ..lab.lm.train.run import Run

    keep_freed_memory()
    check_choice("--preset", preset, tuple(PRESETS))
    settings = _settings("quick" if quick else preset, changes)
    folder = data or _default_data(settings)
    with connected_processes(strategy, timeout=timeout) as processes, _one_at_a_time(out, processes.rank):
        print_line = say if processes.rank == 0 else lambda _: None
        make_run = partial(Run, save_every=save_every, keep=keep, stale=stale)
        make_run = partial(make_run, start_from=start_from, weights_from=weights_from)
        run = make_run(settings, folder, out, processes=processes, say=print_line)
        print_line(_model_in_words(run))
        return _advance(run, out, tensorboard=tensorboard)


def _advance(run: "Run", out: Path, *, tensorboard: bool) -> int:
    """Train to the end and return the exit code; only the first process shows and draws anything."""
    from ..lab.lm.train.divergence import Diverged

    first = run.trainer.processes.rank == 0
    try:
        with _progress(run, show=first, tensorboard=tensorboard and first) as progress:
            run.advance(progress)
    except Diverged as stop:
        return fail(f"{stop}; the rows up to there are in {out / 'rows.jsonl'}", 1)
    if first:
        _summarize(run, out)
    return 0


def _settings(preset: str, changes: Any) -> Settings:
    """Apply the options that were given to the settings of a preset."""
    given = {name: value for name, value in vars(changes).items() if value is not None and value != ()}
    return PRESETS[preset](**given)


def _one_at_a_time(out: Path, rank: int) -> AbstractContextManager[None]:
    """Lock the folder: two runs in it would remove each other's checkpoints."""
    return alone(out / "rows.jsonl", "training into") if rank == 0 else nullcontext()


def _model_in_words(run: "Run") -> str:
    from ..lab.lm.model.config import GPTConfig

    count = sum(p.numel() for p in run.trainer.model.parameters())
    size, papers = run.trainer.config.vocabulary, GPTConfig.paper().vocabulary
    other = f", where the paper's has {papers:,}" if run.settings.model == "paper" and size != papers else ""
    return f"model: {count:,} parameters, {size:,} tokens in the vocabulary{other}"


def _default_data(settings: Settings) -> Path:
    from ..lab.lm.data.default_data import default_data, default_tokenizer

    tokenizer = default_tokenizer(settings.model)
    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        say(f"data: the source of Python's standard library, {tokenizer}")
    return default_data(tokenizer)


@contextmanager
def _progress(run: "Run", *, show: bool, tensorboard: bool) -> Iterator["StepCallback"]:
    """Show the loss and tokens per second, as a bar or by a line now and then, and write scalars for TensorBoard."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ..lab.lm.train.tensorboard import TensorBoardWriter

    state = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[what]}")
    writer = TensorBoardWriter(run) if tensorboard else None
    terminal, lines = Console().is_terminal, ProgressLines()
    with Progress(TextColumn("step"), *state, transient=True, disable=not (show and terminal)) as bar:
        task = bar.add_task("", total=run.settings.steps, completed=run.trainer.done, what="")

        def progress(trainer: "Trainer", loss: float) -> None:
            validation = f", validation {run.rows[-1]['val_loss']:.3f}" if run.rows else ""
            speed = f"{trainer.tokens / trainer.seconds:,.0f} tokens/s"
            what = f"loss {loss:.3f}{validation}, {speed}"
            bar.update(task, completed=trainer.done, what=what)
            if show and not terminal:
                lines(lambda: f"step {trainer.done} of {run.settings.steps}: {what}")
            if writer is not None:
                writer.step(loss)

        try:
            yield progress
        finally:
            if writer is not None:
                writer.close()


def _summarize(run: "Run", out: Path) -> None:
    """Draw the loss curve, and print the speed, the final loss and where the results are."""
    speed, rows = run.speed(), run.rows
    png = _draw_loss(run, out)
    if speed.tokens_per_second:
        share = f"{100 * (speed.optimizer_share or 0):.1f} % of it in the optimizer"
        memory = f"at most {speed.peak_bytes / 2**30:.1f} GiB of memory"
        rate = f"{speed.tokens_per_second:,.0f} a second"
        say(f"{rows[-1]['tokens']:,} tokens in {speed.seconds:.0f} s, {rate}, {share}; {memory}")
    say(f"validation loss: {rows[-1]['val_loss']:.4f}; rows: {out / 'rows.jsonl'}; figure: {png}")


def _draw_loss(run: "Run", out: Path) -> Path:
    from ..lab.engine.figures import panels, save

    figure, (axis,) = panels(1, width=5.2, height=3.6)
    training = [(row["tokens"], loss) for row in run.rows if (loss := row["loss"]) is not None]
    validation = [(row["tokens"], row["val_loss"]) for row in run.rows]
    axis.plot(*zip(*training, strict=True), color="#999999", label="training")
    axis.plot(*zip(*validation, strict=True), "o-", ms=3, label="validation")
    axis.set(xlabel="tokens", ylabel="loss", title=run.settings.method)
    axis.legend(frameon=False)
    return save(figure, out, "loss")[1]
