"""`entryclip data prepare` and `entryclip data fineweb`: shards of tokens from text, or from the Hugging Face hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from .options import Folder, OptionalFolder
from .progress_lines import ProgressLines
from .terminal import say

if TYPE_CHECKING:
    from ..lab.lm.data.manifest import DataProgress, Manifest

Shards = Annotated[int, arg(metavar="N")]
HeldOut = Annotated[tuple[Path, ...], arg(metavar="FILE", help_behavior_hint="")]
Revision = Annotated[str, arg(metavar="COMMIT")]


def prepare(
    files: tuple[Path, ...] = (),
    /,
    out: Folder = Path("data"),
    tokenizer: str = "bpe:4096",
    tokenizer_of: OptionalFolder = None,
    val_every: int = 50,
    shard_tokens: int = 100_000_000,
    held_out: HeldOut = (),
    gpt2_files: OptionalFolder = None,
) -> int:
    """Turn text into shards of tokens: the same text gives the same bytes.

    Stopped at any time, the same command continues.

    Args:
        files: texts, JSONL with a "text" per line (both also as .gz or .xz), or folders of them; default: the source
            of Python's standard library
        out: the folder for the shards and their manifest
        tokenizer: gpt2, bpe:N (trained on the text) or bytes
        tokenizer_of: a folder of shards whose tokenizer to use instead: to fine-tune a model that was trained on these
        val_every: one document of so many is for validation; not used with --held-out
        shard_tokens: tokens per shard
        held_out: texts or folders for validation alone, in place of every N-th document; may be given several times
        gpt2_files: the folder of encoder.json and vocab.bpe, where tiktoken cannot fetch them
    """
    from ..lab.lm.data.prepare import prepare as run

    sized = partial(run, val_every=val_every, shard_tokens=shard_tokens)
    with _progress() as progress:
        manifest = sized(
            *(files, out),
            tokenizer=tokenizer,
            tokenizer_of=tokenizer_of,
            held_out=held_out,
            gpt2_files=gpt2_files,
            progress=progress,
        )
    return _summarize(out, manifest)


def fineweb(*, out: Folder, shards: Shards = 10, revision: Revision = "") -> int:
    """Fetch the paper's data, FineWeb in GPT-2's tokens, from the Hugging Face hub (or the server in HF_ENDPOINT).

    Every shard is compared with the SHA-256 that the hub has for it. Stopped at any time, the same command continues.

    Args:
        out: the folder for the shards and their manifest
        shards: training shards of 100M tokens, 200 MB each; there are 103
        revision: the commit of the data set, 40 hexadecimal digits, as the manifest of an earlier folder has it; the
            newest one unless given
    """
    from ..lab.lm.data.fineweb import fetch

    with _progress() as progress:
        manifest = fetch(out, shards=shards, revision=revision or None, progress=progress)
    return _summarize(out, manifest)


@contextmanager
def _progress() -> Iterator["DataProgress"]:
    """Show what is being done, bytes done and bytes in all: as a bar, or by a line now and then without a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn()
    terminal, lines = Console().is_terminal, ProgressLines()
    with Progress(*columns, transient=True, disable=not terminal) as bar:
        task = bar.add_task("", total=None)

        def progress(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)
            if not terminal:
                lines(lambda: f"{what}: {done / 1e6:,.1f} of {total / 1e6:,.1f} MB")

        yield progress


def _summarize(out: Path, manifest: "Manifest") -> int:
    """Print where the data is and how much of it there is; return the exit code of success."""
    from ..lab.lm.data.manifest import count_tokens

    train, val = count_tokens(manifest, "train"), count_tokens(manifest, "val")
    say(f"data: {out}: {train:,} tokens to train on, {val:,} for validation, vocabulary {manifest['vocabulary']:,}")
    return 0
