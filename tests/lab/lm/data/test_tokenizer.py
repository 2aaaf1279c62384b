import itertools
import json
import subprocess
import sys

import pytest

from entryclip.lab.lm.data.tokenizer import (
    _gpt2_from_files,
    bpe_tokenizer,
    bytes_tokenizer,
    gpt2_tokenizer,
    parse_name,
    train_bpe,
)

TEXTS = [
    "def f(x):\n    return x",
    "the cat sat on the mat, the cat sat",
    "",
    "  é日本\r\n\t🙂 don't",
    "a <|endoftext|> b",
]
CORPUS = TEXTS * 3 + [f"number {i} and the {i * 7919 % 1000}th cat" for i in range(300)]


@pytest.mark.parametrize("make", [bytes_tokenizer, lambda: bpe_tokenizer(train_bpe(400, CORPUS))], ids=["bytes", "bpe"])
def test_text_comes_back_and_cannot_forge_a_separator(make):
    tokenizer = make()
    for text, tokens in zip(TEXTS, tokenizer.encode(TEXTS), strict=True):
        assert tokenizer.decode(tokens.tolist()) == text
        assert tokens.dtype == "uint16"
        assert tokens.size == 0 or tokens.max() < tokenizer.separator == tokenizer.vocabulary - 1


def test_bpe_has_the_size_asked_for_and_shortens():
    tokenizer = bpe_tokenizer(train_bpe(400, CORPUS))
    assert (tokenizer.vocabulary, tokenizer.separator, tokenizer.name) == (400, 399, "bpe:400")
    assert len(tokenizer.encode(["the cat sat"])[0]) < 6
    assert tokenizer.encode([bytes(range(32)).decode()])[0].size == 32  # every byte has a token


def test_bpe_is_the_same_in_another_process():
    code = "import sys, json; from entryclip.lab.lm.data.tokenizer import train_bpe; "
    code += "print(train_bpe(500, json.load(sys.stdin)), end='')"
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(CORPUS), capture_output=True, text=True, check=True
    )
    assert done.stdout == train_bpe(500, CORPUS)


def test_bpe_on_too_little_text_says_what_it_can_do():
    with pytest.raises(ValueError, match=r"too little text for bpe:4096: it gives (25[789]|26.) tokens; ask for bpe:2"):
        train_bpe(4096, ["the cat the cat"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt3", "must be gpt2, bpe:N .* got 'gpt3'"),
        ("bpe", "got 'bpe'"),
        ("bpe:4k", "got 'bpe:4k'"),
        ("bpe:256", "N from 257 .* to 65536, got 256"),
        ("bpe:65537", "got 65537"),
        ("bytes:3", "got 'bytes:3'"),
    ],
)
def test_names_are_checked(name, words):
    with pytest.raises(ValueError, match=words):
        parse_name(name)


def gpt2_like(folder):
    """Write files with the layout of GPT-2's: 256 bytes, 50,000 merges of two bytes each, the end-of-text token."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = printable + [b for b in range(256) if b not in printable]
    spelled = {b: chr(b) if b in printable else chr(256 + order[len(printable) :].index(b)) for b in order}
    pairs = list(itertools.islice(itertools.product([spelled[b] for b in order], repeat=2), 50_000))
    vocabulary = [*(spelled[b] for b in order), *("".join(pair) for pair in pairs), "<|endoftext|>"]
    encoder = {token: i for i, token in enumerate(vocabulary)}
    (folder / "encoder.json").write_text(json.dumps(encoder))
    merges = "\n".join(" ".join(pair) for pair in pairs)
    (folder / "vocab.bpe").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")
    return folder


def test_gpt2_from_files_is_tiktokens(tmp_path, monkeypatch):
    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")  # keep nothing of this
    folder = gpt2_like(tmp_path)
    ranks = data_gym_to_mergeable_bpe_ranks(str(folder / "vocab.bpe"), str(folder / "encoder.json"))
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    theirs = tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})
    ours = _gpt2_from_files(folder)
    assert (ours.vocabulary, ours.separator) == (50257, 50256)
    assert [tokens.tolist() for tokens in ours.encode(CORPUS)] == theirs.encode_ordinary_batch(CORPUS)


def test_files_that_are_not_gpt2s_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no encoder.json in"):
        gpt2_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="is not GPT-2's tokenizer"):
        gpt2_tokenizer(gpt2_like(tmp_path))
    (tmp_path / "encoder.json").write_text("not JSON")
    with pytest.raises(ValueError, match="does not hold a tokenizer"):
        gpt2_tokenizer(tmp_path)


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"pip install 'entryclip\[lm\]'"):
        train_bpe(300, CORPUS)
