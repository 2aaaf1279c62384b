"""Log-histograms of |x|: counts on a grid that is the same for all data, so that the histograms of parts add up.

A bin is an exponent and the four leading bits of the mantissa: sixteen bins per factor of two, read off the bit
pattern, without a logarithm. fp64 has 2^15 bins; those of fp32 are a part of these.
"""

from dataclasses import dataclass

import numpy as np

from ..arrays import Array, check_floating, to_numpy

_PER_OCTAVE = 16
_BINS = 2**15  # exponents of fp64 x 16
_FIRST_FP32 = (1023 - 127) * _PER_OCTAVE  # where the exponents of fp32 begin


@dataclass(frozen=True, eq=False)
class Histogram:
    """The log-histogram of |x|, sixteen bins per factor of two: a sketch of data too large or too scattered to keep.

    `a + b` is the histogram of both, over batches, steps or processes. Zeros, and fp32 below 2^-126, are in the first
    bin. NaN and infinite entries are refused.

    >>> import torch
    >>> x = torch.tensor([0.0, -3.0, 1.0, 1.01])
    >>> h = Histogram.of(x[:2]) + Histogram.of(x[2:])
    >>> h.count, h.zeros
    (4, 1)
    >>> low, high, count = h.occupied()
    >>> low.tolist(), high.tolist(), count.tolist()
    ([1.0, 3.0], [1.0625, 3.125], [2, 1])
    """

    counts: np.ndarray  # int64, (2^15,): to add over processes, all-reduce it

    def __post_init__(self) -> None:
        if self.counts.shape != (_BINS,) or self.counts.dtype != np.int64:
            raise ValueError(f"counts must be int64 of shape ({_BINS},), got {self.counts.dtype} {self.counts.shape}")

    @classmethod
    def of(cls, x: Array) -> "Histogram":
        """Count all entries of a torch tensor or a numpy array."""
        check_floating(x)
        values = np.ascontiguousarray(to_numpy(x)).ravel()
        narrow = values.dtype == np.float32
        bits, magnitude, shift = (
            (values.view(np.int32), 2**31 - 1, 19) if narrow else (values.view(np.int64), 2**63 - 1, 48)
        )
        counts = np.zeros(2**12 if narrow else _BINS, dtype=np.int64)
        for start in range(0, len(bits), 2**18):  # chunk by chunk, so that it stays in the cache
            counts += np.bincount((bits[start : start + 2**18] & magnitude) >> shift, minlength=len(counts))
        if bad := int(counts[-_PER_OCTAVE:].sum()):
            raise ValueError(f"x has {bad} entries that are NaN or infinite: remove them first")
        return cls(_widened(counts) if narrow else counts)

    def __add__(self, other: "Histogram") -> "Histogram":
        return Histogram(self.counts + other.counts)

    @property
    def count(self) -> int:
        """The number of entries, zeros among them."""
        return int(self.counts.sum())

    @property
    def zeros(self) -> int:
        """The number of entries in the first bin."""
        return int(self.counts[0])

    def occupied(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return lower edges, upper edges and counts of the bins that are not empty, without the zeros."""
        index = np.flatnonzero(self.counts[1:]) + 1
        return _edge(index), _edge(index + 1), self.counts[index]


def _edge(index: np.ndarray) -> np.ndarray:
    return (index.astype(np.int64) << 48).view(np.float64)


def _widened(counts: np.ndarray) -> np.ndarray:
    """Place counts on fp32's grid on the one of fp64; subnormal numbers of fp32 count as zeros."""
    wide = np.zeros(_BINS, dtype=np.int64)
    wide[_FIRST_FP32 : _FIRST_FP32 + len(counts)] = counts
    wide[_FIRST_FP32 : _FIRST_FP32 + _PER_OCTAVE] = 0
    wide[0] = counts[:_PER_OCTAVE].sum()
    return wide
