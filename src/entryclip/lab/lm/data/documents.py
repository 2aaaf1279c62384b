"""Documents from files: a text file is one document (a long one several), a JSONL file has one per line.

Both may be compressed, as .gz or .xz.
"""

import gzip
import io
import json
import lzma
import os
import sysconfig
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

PIECE = 2**16  # characters; a longer text is cut at the next end of a line, so that a document fits in memory
_TEXT, _COMPRESSED = (".txt", ".md", ".rst", ".py", ".jsonl"), (".gz", ".xz")
_NOT_SOURCE = {"test", "tests", "idlelib", "site-packages", "dist-packages", "__pycache__"}


class Source(NamedTuple):
    """A file of text, and its name in the manifest, which does not depend on the folder it is in."""

    name: str
    path: Path


def find_sources(inputs: Sequence[Path]) -> list[Source]:
    """List the files to read: each file given, and every text in each folder given, sorted; each file once.

    Without inputs: the source of Python's standard library, which every machine has.
    """
    found = [source for each in inputs for source in _within(each)] if inputs else _standard_library()
    unique = {source.path.resolve(): source for source in found}
    return list(unique.values())


def _within(path: Path) -> list[Source]:
    if path.is_file():
        return [Source(path.name, path)]
    if not path.is_dir():
        raise FileNotFoundError(f"no file or folder {path}")
    inside = sorted(each for each in path.rglob("*") if _is_text(each) and each.is_file())
    if not inside:
        raise ValueError(f"no text in {path}: a folder is searched for {', '.join(_TEXT)}, also with .gz or .xz")
    return [Source(each.relative_to(path).as_posix(), each) for each in inside]


def _is_text(path: Path) -> bool:
    plain = path.with_suffix("") if path.suffix in _COMPRESSED else path
    return plain.suffix in _TEXT and not path.name.startswith(".")


def _standard_library() -> list[Source]:
    root, files = Path(sysconfig.get_path("stdlib")), list[Path]()
    for folder, inside, names in os.walk(root):
        inside[:] = [each for each in inside if each not in _NOT_SOURCE]  # installed packages are many, and not entered
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return [Source(path.relative_to(root).as_posix(), path) for path in sorted(files)]


def documents(sources: Sequence[Source]) -> Iterator[tuple[str, int]]:
    """Yield every document that is not empty, in order, with the number of bytes read so far (as stored on disk)."""
    before = 0
    for source in sources:
        with source.path.open("rb") as raw:
            for text in _documents_of(source.path, raw):
                if text:
                    yield text, before + raw.tell()
        before += source.path.stat().st_size


def _documents_of(path: Path, raw: BinaryIO) -> Iterator[str]:
    try:
        with io.TextIOWrapper(_decompressed(path, raw), encoding="utf-8", newline="") as lines:
            is_json = ".jsonl" in path.suffixes[-2:]
            yield from _json_documents(path, lines) if is_json else _pieces(lines)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8 ({error.reason}): convert it, or leave it out") from error
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}): fetch it again") from error


def _decompressed(path: Path, raw: BinaryIO) -> BinaryIO:
    if path.suffix == ".gz":
        return gzip.open(raw)  # type: ignore[return-value]
    if path.suffix == ".xz":
        return lzma.open(raw)  # type: ignore[return-value]
    return raw


def _json_documents(path: Path, lines: Iterator[str]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _text_of(line, f"{path}, line {number}")


def _text_of(line: str, where: str) -> str:
    try:
        value = json.loads(line)
        text = value["text"]
        text.encode()  # JSON can spell half of a surrogate pair, which no tokenizer takes
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: the text has a lone surrogate at character {error.start}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f'{where}: must be a JSON object with a "text" string, as {{"text": "..."}}') from error
    return str(text)


def _pieces(lines: Iterator[str]) -> Iterator[str]:
    """Join lines to documents of about `PIECE` characters."""
    held: list[str] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= PIECE:
            yield "".join(held)
            held, size = [], 0
    yield "".join(held)
