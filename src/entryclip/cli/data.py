"""`entryclip data prepare`."""

from pathlib import Path

from .options import Folder
from .terminal import say


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
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    from ..lm.prepare import prepare as run

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
    say(f"{said}, vocabulary {manifest['vocabulary']:,}")
    return 0
