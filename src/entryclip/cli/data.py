"""`entryclip data prepare` and `entryclip data fineweb`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from .options import Folder
from .terminal import say

Shards = Annotated[int, arg(metavar="N")]


def prepare(
    files: tuple[Path, ...] = (),
    /,
    out: Folder = Path("data"),
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
    from ..lab.lm.data.prepare import prepare as run

    with _progress() as progress:
        manifest = run(
            *(files, out),
            tokenizer=tokenizer,
            val_every=val_every,
            shard_tokens=shard_tokens,
            gpt2_files=gpt2_files,
            progress=progress,
        )
    _summarize(out, manifest)
    return 0


def fineweb(*, out: Folder, shards: Shards = 10) -> int:
    """Fetch the paper's data, FineWeb in GPT-2's tokens, from the Hugging Face hub (or the server in HF_ENDPOINT).

    It can be stopped at any time: the same command goes on where it was.

    Args:
        out: the folder for the shards and their manifest
        shards: training shards of 100M tokens, 200 MB each; there are 103
    """
    from ..lab.lm.data.fineweb import fetch

    with _progress() as progress:
        manifest = fetch(out, shards=shards, progress=progress)
    _summarize(out, manifest)
    return 0


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for what is being done, bytes done, bytes in all."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn()
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def _summarize(out: Path, manifest: dict[str, Any]) -> None:
    from ..lab.lm.data.manifest import count_tokens

    train, val = (count_tokens(manifest, split) for split in ("train", "val"))
    say(f"data: {out}: {train:,} tokens to train on, {val:,} for validation, vocabulary {manifest['vocabulary']:,}")
