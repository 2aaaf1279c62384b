import gzip
import json
import lzma
import re

import pytest

from entryclip.lab.lm.data.documents import PIECE, documents, find_sources

TEXTS = ["one\r\ntwo", "three é", "four"]
LINES = "\n".join(json.dumps({"text": text, "id": i}) for i, text in enumerate(TEXTS)) + "\n\n"


def texts(*paths):
    return [text for text, _ in documents(find_sources(paths))]


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_texts_and_jsonl_packed_or_not(tmp_path, suffix, pack):
    (tmp_path / f"a.txt{suffix}").write_bytes(pack(TEXTS[0].encode()))
    (tmp_path / f"b.jsonl{suffix}").write_bytes(pack(LINES.encode()))
    assert texts(tmp_path) == [TEXTS[0], *TEXTS]
    assert texts(tmp_path / f"b.jsonl{suffix}") == TEXTS


def test_folders_are_searched_for_text_in_order(tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("z.md", "b/a.py", "b/no.bin", ".hidden.txt", "a.txt"):
        (tmp_path / name).write_text(name)
    assert texts(tmp_path) == ["a.txt", "b/a.py", "z.md"]
    assert [source.name for source in find_sources([tmp_path])] == ["a.txt", "b/a.py", "z.md"]
    assert texts(tmp_path / "b" / "no.bin", tmp_path) == ["b/no.bin", "a.txt", "b/a.py", "z.md"]
    assert texts(tmp_path, tmp_path / "a.txt") == ["a.txt", "b/a.py", "z.md"]  # once


def test_a_long_text_is_cut_at_ends_of_lines(tmp_path):
    text = "".join(f"line {i}\n" for i in range(30_000))
    (tmp_path / "a.txt").write_text(text)
    pieces = texts(tmp_path)
    assert "".join(pieces) == text
    assert len(pieces) == len(text) // PIECE + 1
    assert all(piece.endswith("\n") and PIECE <= len(piece) < PIECE + 20 for piece in pieces[:-1])


def test_bytes_read_grow_to_the_size_of_the_files(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 10)
    (tmp_path / "b.txt").write_text("b" * 20)
    assert [done for _, done in documents(find_sources([tmp_path]))] == [10, 30]


def test_nothing_given_is_the_standard_library():
    sources = find_sources([])
    names = {source.name for source in sources}
    assert {"argparse.py", "json/decoder.py"} <= names
    assert not any("site-packages" in name or name.startswith("test/") for name in names)
    assert sum(len(text) for text, _ in documents(sources)) > 5_000_000


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.txt", b"\xff\xfe", "is not text in UTF-8"),
        ("a.jsonl", b'{"text": "a"}\nnot json', 'line 2: must be a JSON object with a "text" string'),
        ("a.jsonl", b'{"title": "a"}', "line 1: must be a JSON object"),
        ("a.jsonl", b'{"text": 3}', "line 1: must be a JSON object"),
        ("a.jsonl", b"[1]", "line 1: must be a JSON object"),
        ("a.jsonl", b'{"text": "ab\\ud800"}', "line 1: the text has a lone surrogate at character 2"),
        ("a.txt.xz", lzma.compress(b"text" * 1000)[:-20], "is damaged"),
        ("a.txt.gz", gzip.compress(b"text" * 1000, mtime=0)[:-20], "is damaged"),
        ("a.txt.gz", b"text", "is damaged"),
    ],
    ids=["utf-8", "not-json", "no-text", "number", "list", "surrogate", "cut-xz", "cut-gz", "not-gz"],
)
def test_bad_files_are_named(tmp_path, name, data, words):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=f"{re.escape(str(tmp_path / name))}.*{words}"):
        texts(tmp_path)


def test_missing_and_empty(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file or folder .*nowhere"):
        find_sources([tmp_path / "nowhere"])
    with pytest.raises(ValueError, match=r"no text in .*: a folder is searched for .txt"):
        find_sources([tmp_path])
