"""Shards of a small text, made once."""

import random

import pytest

from entryclip.lm.prepare import prepare


@pytest.fixture(scope="session")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    words = (
        "the",
        "cat",
        "sat",
        "on",
        "a",
        "mat",
        "and",
        "saw",
        "one",
        "dog",
        "run",
        "to",
        "its",
        "old",
        "red",
        "house",
    )
    draw = random.Random(0)
    texts = [" ".join(draw.choices(words, k=60)) for _ in range(400)]
    for i, text in enumerate(texts):
        (folder / f"{i:03}.txt").write_text(text)
    prepare([folder], folder / "out", tokenizer="bytes", val_every=10)
    return folder / "out"
