"""Tokenizers: `gpt2`, `bpe:N` (trained on the text itself) and `bytes`. The last token separates documents.

Text never encodes to the separator: `<|endoftext|>` in a document is encoded letter by letter.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engine.schema import BadFile
from ..extras import import_extra
from .manifest import LARGEST_VOCABULARY

Encoded = list[NDArray[np.uint16]]  # the tokens of each text
_PURPOSE = "turning text into tokens"


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer that encodes many texts at once, on all cores.

    name        as on the command line: gpt2, bpe:N or bytes
    separator   the token before each document, which is the last of the vocabulary

    >>> t = bytes_tokenizer()
    >>> [tokens.tolist() for tokens in t.encode(["ab", "é"])]
    [[97, 98], [195, 169]]
    >>> t.separator, t.vocabulary
    (256, 257)
    """

    name: str
    separator: int
    encode: Callable[[Sequence[str]], Encoded]
    decode: Callable[[Sequence[int]], str]

    @property
    def vocabulary(self) -> int:
        """Number of tokens, the separator included."""
        return self.separator + 1


def parse_name(name: str) -> tuple[str, int]:
    """Split the name of a tokenizer into its kind and the size of its vocabulary.

    >>> parse_name("bpe:4096"), parse_name("gpt2")
    (('bpe', 4096), ('gpt2', 50257))
    """
    sizes = {"gpt2": 50257, "bytes": 257}
    if name in sizes:
        return name, sizes[name]
    kind, _, size = name.partition(":")
    if kind != "bpe" or not size.isdecimal():
        raise ValueError(f"tokenizer must be gpt2, bpe:N (as bpe:4096) or bytes, got {name!r}")
    if not 257 <= int(size) <= LARGEST_VOCABULARY:
        raise ValueError(f"bpe:N takes N from 257 (every byte and a separator) to {LARGEST_VOCABULARY}, got {size}")
    return kind, int(size)


def bytes_tokenizer() -> Tokenizer:
    """Make the tokenizer with one token per byte of UTF-8."""

    def encode(texts: Sequence[str]) -> Encoded:
        return [np.frombuffer(text.encode(), np.uint8).astype(np.uint16) for text in texts]

    return Tokenizer("bytes", 256, encode, lambda tokens: bytes(tokens).decode(errors="replace"))


def train_bpe(size: int, texts: Iterable[str]) -> str:
    """Train a byte-level BPE tokenizer of `size` tokens, the separator included; return it as JSON.

    The same texts give the same tokenizer.
    """
    library = _import_tokenizers()
    model = library.Tokenizer(library.models.BPE())
    model.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = library.decoders.ByteLevel()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size - 1, initial_alphabet=sorted(alphabet), special_tokens=[], show_progress=False
    )
    model.train_from_iterator(texts, trainer)
    if model.get_vocab_size() < size - 1:
        most = model.get_vocab_size() + 1
        raise ValueError(f"there is too little text for bpe:{size}: it gives {most} tokens; ask for bpe:{most} or less")
    return str(model.to_str())


def bpe_tokenizer(json: str) -> Tokenizer:
    """Load a tokenizer from the JSON that `train_bpe` returned."""
    try:
        model = _import_tokenizers().Tokenizer.from_str(json)
    except Exception as error:  # the library raises bare Exceptions
        raise BadFile(f"tokenizer.json does not hold a tokenizer ({error}): prepare the data again") from error
    size = model.get_vocab_size()
    return Tokenizer(f"bpe:{size + 1}", size, _encode_with(model), model.decode)


def gpt2_tokenizer(files: Path | None = None) -> Tokenizer:
    """Load GPT-2's tokenizer, from `encoder.json` and `vocab.bpe` in the folder `files`, or by tiktoken.

    tiktoken downloads it once and caches it.
    """
    tokenizer = _gpt2_from_files(files) if files else _gpt2_from_tiktoken()
    if [each.tolist() for each in tokenizer.encode(["Hello world"])] != [[15496, 995]]:
        where = files or "tiktoken's copy"
        raise ValueError(f"{where} is not GPT-2's tokenizer: fetch encoder.json and vocab.bpe again")
    return tokenizer


def _gpt2_from_files(folder: Path) -> Tokenizer:
    for name in ("encoder.json", "vocab.bpe"):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"no {name} in {folder}: GPT-2's tokenizer is encoder.json and vocab.bpe")
    library = _import_tokenizers()
    try:
        model = library.Tokenizer(library.models.BPE.from_file(str(folder / "encoder.json"), str(folder / "vocab.bpe")))
    except Exception as error:  # the library raises bare Exceptions
        remedy = "fetch encoder.json and vocab.bpe again"
        raise ValueError(f"{folder} does not hold a tokenizer ({error}): {remedy}") from error
    model.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = library.decoders.ByteLevel()
    return Tokenizer("gpt2", 50256, _encode_with(model), model.decode)


def _gpt2_from_tiktoken() -> Tokenizer:
    tiktoken = import_extra("tiktoken", _PURPOSE)
    try:
        model = tiktoken.get_encoding("gpt2")
    except OSError as error:
        remedy = "give the folder of encoder.json and vocab.bpe with --gpt2-files"
        raise OSError(f"GPT-2's tokenizer cannot be fetched ({type(error).__name__}): {remedy}") from error

    def encode(texts: Sequence[str]) -> Encoded:
        found = model.encode_ordinary_batch(list(texts), num_threads=os.cpu_count() or 1)
        return [np.array(tokens, np.uint16) for tokens in found]

    return Tokenizer("gpt2", 50256, encode, lambda tokens: model.decode(list(tokens)))


def _encode_with(model: Any) -> Callable[[Sequence[str]], Encoded]:
    def encode(texts: Sequence[str]) -> Encoded:
        return [np.array(each.ids, np.uint16) for each in model.encode_batch_fast(list(texts))]

    return encode


def _import_tokenizers() -> Any:
    return import_extra("tokenizers", _PURPOSE)
