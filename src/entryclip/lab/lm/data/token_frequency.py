"""How often each token occurs in a text, and bands of tokens that are about as frequent.

The paper's conjecture is that gradient noise is heavy-tailed because rare expressions are (Zipf's law). A band collects
the tokens whose frequency in the training text is within a factor of ten.
"""

import numpy as np
from numpy.typing import NDArray

from .shards import Tokens

_EDGES = (1000.0, 100.0, 10.0, 1.0)  # occurrences per million tokens, between one band and the next
BANDS = ("over 1000", "100 to 1000", "10 to 100", "1 to 10", "under 1")  # per million, from frequent to rare
_CHUNK = 1 << 24  # tokens that are counted at a time


def count_tokens(tokens: Tokens, vocabulary: int) -> NDArray[np.int64]:
    """Count how often each token of the vocabulary occurs: an array of shape (vocabulary,)."""
    counts = np.zeros(vocabulary, np.int64)
    for start in range(0, len(tokens), _CHUNK):
        counts += np.bincount(tokens.read(start, min(start + _CHUNK, len(tokens))), minlength=vocabulary)
    return counts


def frequency_bands(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of each token's band in `BANDS`, 0 for the most frequent, from how often each token occurs.

    >>> frequency_bands(np.array([900_000, 99_500, 495, 4, 1, 0])).tolist()
    [0, 0, 1, 3, 3, 4]
    """
    per_million = counts * (1e6 / max(int(counts.sum()), 1))
    return np.searchsorted(-np.array(_EDGES), -per_million)
