"""`entryclip train`: one run, with a progress bar; `torchrun ... -m entryclip train` for many processes."""

import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import tyro
from tyro.conf import arg

from ..lab.engine.files import alone
from ..lab.lm.train.settings import Settings
from .options import Folder
from .terminal import check_choice, fail, say

if TYPE_CHECKING:
    from ..lab.lm.train.run import Row, Run
    from ..lab.lm.train.trainer import Trainer

PRESETS: dict[str, Callable[..., Settings]] = {
    "small": Settings,
    "paper": Settings.paper,
    "snapshot": Settings.snapshot,
    "quick": Settings.quick,
}


def _changes() -> Any:
    """The fields of `Settings`, all optional, with the help that stands in its docstring."""
    lines = re.findall(r"^    (\w[\w, ]*?)  +(.+)$", Settings.__doc__ or "", re.MULTILINE)
    helps = {name: text for names, text in lines for name in names.split(", ")}
    kinds = get_type_hints(Settings)
    fields: list[Any] = [
        (name, Annotated[kinds[name] | None, arg(help=helps.get(name, ""))], None)
        for name in (field.name for field in dataclasses.fields(Settings))
        if name != "clip_where"
    ]
    where = Annotated[tuple[str, ...], arg(metavar="PATTERN", help=helps["clip_where"])]  # may be given several times
    return dataclasses.make_dataclass("Changes", [*fields, ("clip_where", where, ())], frozen=True)


Changes: Any = _changes()


def train(
    *,
    preset: Annotated[str, arg(metavar="{" + ",".join(PRESETS) + "}")] = "small",
    quick: bool = False,
    data: Folder | None = None,
    out: Folder = Path("out/train"),
    save_every: int = 100,
    keep: int = 2,
    start_from: Folder | None = None,
    strategy: Annotated[str, arg(metavar="{ddp,fsdp}")] = "ddp",
    timeout: float = 600,
    tensorboard: bool = False,
    stale: Annotated[str, arg(metavar="{refuse,keep}")] = "refuse",
    changes: Annotated[Changes, tyro.conf.OmitArgPrefixes] = Changes(),  # noqa: B008 - frozen
) -> int:
    """Train a language model by one of the paper's methods; stopped at any time, the same command goes on.

    Args:
        preset: what the options below start from: small (a CPU is enough), paper (276M), snapshot (the speed-run's)
            or quick
        quick: the same as --preset quick: seconds, for a first look
        data: the folder of shards, from `entryclip data`; none: the Python standard library's own source
        out: the folder for rows, the figure and checkpoints
        save_every: steps between checkpoints; 0: only at the end
        keep: checkpoints that stay; 0: all
        start_from: a checkpoint, or the --out of another run: go on from there, but with these settings
        strategy: under torchrun: ddp, or fsdp to cut the model into pieces
        timeout: seconds after which a process whose partner is gone gives up
        tensorboard: write scalars to the folder tensorboard in --out, too
        stale: whether to go on from a checkpoint of other code or versions
        changes: settings that differ from the preset's
    """
    from ..lab.lm.train.nonfinite import Diverged
    from ..lab.lm.train.processes import joined
    from ..lab.lm.train.run import Run

    check_choice("--preset", preset, tuple(PRESETS))
    given = {name: value for name, value in vars(changes).items() if value is not None and value != ()}
    settings = PRESETS["quick" if quick else preset](**given)
    folder = data or _default_data(settings)
    with joined(strategy, timeout=timeout) as processes, _one_at_a_time(out, processes.rank):
        first = processes.rank == 0
        print_line = say if first else lambda _: None
        options: dict[str, Any] = {"save_every": save_every, "keep": keep, "stale": stale, "start_from": start_from}
        run = Run(settings, folder, out, processes=processes, say=print_line, **options)
        print_line(_model_in_words(run))
        try:
            with _watching(run, show=first, tensorboard=tensorboard and first) as progress:
                rows = run.advance(progress)
        except Diverged as stop:
            return fail(f"{stop}; the rows up to there are in {out / 'rows.jsonl'}", 1)
        if first:
            _finish(run, rows, out)
    return 0


def _one_at_a_time(out: Path, rank: int) -> AbstractContextManager[None]:
    """The same command may be started twice; two runs in one folder would remove each other's checkpoints."""
    return alone(out / "rows.jsonl", "training into") if rank == 0 else nullcontext()


def _model_in_words(run: "Run") -> str:
    from ..lab.lm.model.config import Config

    count = sum(p.numel() for p in run.trainer.model.parameters())
    size, papers = run.trainer.config.vocabulary, Config.paper().vocabulary
    other = f", where the paper's has {papers:,}" if run.settings.model == "paper" and size != papers else ""
    return f"model: {count:,} parameters, {size:,} tokens in the vocabulary{other}"


def _default_data(settings: Settings) -> Path:
    from ..lab.lm.data.default import default_data, default_tokenizer

    tokenizer = default_tokenizer(settings.model)
    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        say(f"data: the Python standard library's own source, {tokenizer}")
    return default_data(tokenizer)


@contextmanager
def _watching(run: "Run", *, show: bool, tensorboard: bool) -> Iterator[Callable[["Trainer", float], None]]:
    """A progress bar with the loss and tokens per second; scalars for TensorBoard."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("step"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[what]}"),
    )
    writer = _Scalars(run) if tensorboard else None
    with Progress(*columns, transient=True, disable=not (show and Console().is_terminal)) as bar:
        task = bar.add_task("", total=run.settings.steps, completed=run.trainer.done, what="")

        def progress(trainer: "Trainer", loss: float) -> None:
            held_out = f", validation {run.rows[-1]['val_loss']:.3f}" if run.rows else ""
            speed = f"{trainer.tokens / trainer.seconds:,.0f} tokens/s"
            bar.update(task, completed=trainer.done, what=f"loss {loss:.3f}{held_out}, {speed}")
            if writer is not None:
                writer.step(loss)

        try:
            yield progress
        finally:
            if writer is not None:
                writer.close()


class _Scalars:
    """TensorBoard's scalars: those of every step, and each validation loss once."""

    def __init__(self, run: "Run") -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError("--tensorboard needs a package: pip install 'entryclip[tensorboard]'") from error
        self.run, self.rows = run, len(run.rows)  # rows that are written
        self.writer: Any = SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.trainer.done)

    def step(self, loss: float) -> None:
        trainer = self.run.trainer
        speed = trainer.tokens / trainer.seconds
        for name, value in {"loss": loss, "lr": trainer.learning_rate(), "tokens_per_second": speed}.items():
            self.writer.add_scalar(name, value, trainer.done)
        self._evaluations()

    def close(self) -> None:
        self._evaluations()
        self.writer.close()

    def _evaluations(self) -> None:
        for row in self.run.rows[self.rows :]:
            self.writer.add_scalar("val_loss", row["val_loss"], row["step"])
        self.rows = len(self.run.rows)


def _finish(run: "Run", rows: list["Row"], out: Path) -> None:
    """The end in words, and the curve as a figure."""
    from ..lab.engine.figures import panels, save

    figure, (axis,) = panels(1, width=5.2, height=3.6)
    trained = [row for row in rows if row["loss"] is not None]
    axis.plot([row["tokens"] for row in trained], [row["loss"] for row in trained], color="#999999", label="training")
    axis.plot([row["tokens"] for row in rows], [row["val_loss"] for row in rows], "o-", ms=3, label="validation")
    axis.set(xlabel="tokens", ylabel="loss", title=run.settings.method)
    axis.legend(frameon=False)
    _, png = save(figure, out, "loss")
    speed = run.speed()
    if speed["tokens_per_second"]:
        share = f"{100 * (speed['optimizer_share'] or 0):.1f} % of it in the optimizer"
        rate = f"{speed['tokens_per_second']:,.0f} a second"
        memory = f"at most {(speed['peak_bytes'] or 0) / 2**30:.1f} GiB of memory"
        say(f"{rows[-1]['tokens']:,} tokens in {speed['seconds']:.0f} s, {rate}, {share}; {memory}")
    say(f"validation loss: {rows[-1]['val_loss']:.4f}; rows: {out / 'rows.jsonl'}; figure: {png}")
