"""The sizes of the language model, as one frozen `GPTConfig` whose defaults are the paper's."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a `GPT`. The defaults are the paper's; `small()` and `tiny()` have the same parts with smaller numbers.

    vocabulary, separator   how many tokens there are, and the one that stands before each document
    layers                  blocks of the transformer; the second half has skip connections from the first
    value_tables            value embeddings, used by the first layers and again by the last
    without_attention       the layers that have an MLP only
    long_layers             the layers that attend to the whole window; the others attend to half of it
    block                   tokens per block: attention windows are counted in blocks
    window                  tokens that the long layers look back on at the end of a run; rounded up to whole blocks

    >>> GPTConfig.paper().head_rows, GPTConfig.paper().value_layers
    (50304, (0, 1, 2, 9, 10, 11))
    >>> GPTConfig(layers=11)
    Traceback (most recent call last):
    ...
    ValueError: layers must be even, the second half mirrors the first, got 11
    """

    vocabulary: int = 50257
    separator: int = 50256
    layers: int = 12
    width: int = 768
    heads: int = 6
    head_size: int = 128
    value_tables: int = 3
    without_attention: tuple[int, ...] = (7,)
    long_layers: tuple[int, ...] = (0, 4, 7, 11)
    block: int = 128
    window: int = 1728
    attention_scale: float = 0.12

    def __post_init__(self) -> None:
        for name in ("vocabulary", "layers", "width", "heads", "head_size", "block", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.layers % 2:
            raise ValueError(f"layers must be even, the second half mirrors the first, got {self.layers}")
        if self.head_size % 4:
            raise ValueError(f"head_size must be a multiple of 4, for the rotations, got {self.head_size}")
        if not 0 <= self.separator < self.vocabulary:
            raise ValueError(f"separator must be a token, 0 to {self.vocabulary - 1}, got {self.separator}")
        if not 0 <= self.value_tables <= self.layers // 2:
            raise ValueError(f"value_tables must be 0 to layers / 2 = {self.layers // 2}, got {self.value_tables}")
        for name in ("without_attention", "long_layers"):
            if beyond := [i for i in getattr(self, name) if not 0 <= i < self.layers]:
                raise ValueError(f"{name} must be layers, 0 to {self.layers - 1}, got {beyond[0]}")
        if not 0 < self.attention_scale < math.inf:
            raise ValueError(f"attention_scale must be a finite number above 0, got {self.attention_scale}")

    @classmethod
    def paper(cls) -> "GPTConfig":
        """The paper's 276M model: 275,598,388 parameters."""
        return cls()

    @classmethod
    def small(cls, vocabulary: int = 4096, separator: int | None = None) -> "GPTConfig":
        """A model for studies on a CPU: 1.1M parameters in the blocks, all lengths a quarter of the paper's."""
        return _SMALL.with_vocabulary(vocabulary, separator)

    @classmethod
    def tiny(cls, vocabulary: int = 257, separator: int | None = None) -> "GPTConfig":
        """A model for tests and a first look."""
        return _TINY.with_vocabulary(vocabulary, separator)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "GPTConfig":
        """Read a config from its fields as JSON holds them, with lists in place of tuples."""
        tuples = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
        return cls(**{**fields, **tuples})

    def with_vocabulary(self, size: int, separator: int | None = None) -> "GPTConfig":
        """Adapt the model to another tokenizer, whose last token is the separator unless one is given.

        >>> GPTConfig.paper().with_vocabulary(4096).separator
        4095
        """
        return replace(self, vocabulary=size, separator=size - 1 if separator is None else separator)

    def with_width(self, width: int) -> "GPTConfig":
        """Make the model wider or narrower: other numbers of heads, each of the same size.

        >>> GPTConfig.small().with_width(256).heads
        4
        >>> GPTConfig.small().with_width(100)
        Traceback (most recent call last):
        ...
        ValueError: width must be a multiple of 64, the size of a head, got 100
        """
        if width < self.head_size or width % self.head_size:
            raise ValueError(f"width must be a multiple of {self.head_size}, the size of a head, got {width}")
        return replace(self, width=width, heads=width // self.head_size)

    @property
    def head_rows(self) -> int:
        """Number of logits: the vocabulary, rounded up to a multiple of 128. The padding stays in the softmax."""
        return -(-self.vocabulary // 128) * 128

    @property
    def value_layers(self) -> tuple[int, ...]:
        """The layers that add a value embedding to their values."""
        ends = range(self.value_tables), range(self.layers - self.value_tables, self.layers)
        return (*ends[0], *ends[1])

    def window_blocks(self, progress: float = 1.0) -> int:
        """Number of blocks the long layers attend to, the query's own included; grows with the progress of the run.

        progress    the share of the run that is over, 0 to 1

        >>> [GPTConfig.paper().window_blocks(progress) for progress in (0, 0.5, 1)]
        [1, 7, 14]
        """
        if not 0 <= progress <= 1:
            raise ValueError(f"progress must be in [0, 1], got {progress}")
        return max(1, math.ceil(self.window * progress / self.block))


_SMALL_LAYERS = GPTConfig(layers=6, value_tables=2, without_attention=(3,), long_layers=(0, 2, 3, 5))
_TINY_LAYERS = GPTConfig(layers=4, value_tables=1, without_attention=(2,), long_layers=(0, 3))
_SMALL = replace(_SMALL_LAYERS, width=128, heads=2, head_size=64, block=32, window=432)
_TINY = replace(_TINY_LAYERS, width=32, heads=2, head_size=16, block=8, window=60)
