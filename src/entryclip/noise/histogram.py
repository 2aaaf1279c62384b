"""Counts of |x| on a logarithmic grid that is the same for all data, so that histograms of parts add up to the whole's.

A bin is an exponent and the four leading bits of the mantissa: sixteen bins per factor of two, read off the bit
pattern, without a logarithm. fp64 has 2^15 of them; those of fp32 are a part of these.
"""

from dataclasses import dataclass

import numpy as np
import torch

from ..arrays import Array, check_floating

_PER_OCTAVE = 16
_BINS = 2**15  # exponents of fp64 x 16
_FIRST_FP32 = (1023 - 127) * _PER_OCTAVE  # where the exponents of fp32 begin


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts of the finite |x|; `a + b` is the histogram of both. Zeros, and fp32 below 2^-126, are in the first bin.

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
        """The histogram of all entries of a torch or numpy array."""
        check_floating(x)
        values = _host(x).ravel()
        narrow = values.dtype == np.float32
        bits, magnitude, shift = (
            (values.view(np.int32), 2**31 - 1, 19) if narrow else (values.view(np.int64), 2**63 - 1, 48)
        )
        counts = np.zeros(2**12 if narrow else _BINS, dtype=np.int64)
        for start in range(0, len(bits), 2**18):  # in pieces that stay in the cache
            counts += np.bincount((bits[start : start + 2**18] & magnitude) >> shift, minlength=len(counts))
        if bad := int(counts[-_PER_OCTAVE:].sum()):
            raise ValueError(f"x has {bad} entries that are NaN or infinite: remove them first")
        return cls(_widened(counts) if narrow else counts)

    def __add__(self, other: "Histogram") -> "Histogram":
        return Histogram(self.counts + other.counts)

    @property
    def count(self) -> int:
        """Entries in all."""
        return int(self.counts.sum())

    @property
    def zeros(self) -> int:
        """Entries in the first bin."""
        return int(self.counts[0])

    def occupied(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Lower edges, upper edges and counts of the bins that are not empty, without the zeros."""
        index = np.flatnonzero(self.counts[1:]) + 1
        return _edge(index), _edge(index + 1), self.counts[index]


def _edge(index: np.ndarray) -> np.ndarray:
    return (index.astype(np.int64) << 48).view(np.float64)


def _widened(counts: np.ndarray) -> np.ndarray:
    """Counts on fp32's grid on the one of fp64; what fp32 holds below its normal numbers goes to the zeros."""
    wide = np.zeros(_BINS, dtype=np.int64)
    wide[_FIRST_FP32 : _FIRST_FP32 + len(counts)] = counts
    wide[_FIRST_FP32 : _FIRST_FP32 + _PER_OCTAVE] = 0
    wide[0] = counts[:_PER_OCTAVE].sum()
    return wide


def _host(x: Array) -> np.ndarray:
    """`x` in fp32 or fp64 on the host."""
    if isinstance(x, torch.Tensor):
        x = (x.detach() if x.dtype == torch.float64 else x.detach().float()).cpu().numpy()
    x = np.asarray(x)
    return np.ascontiguousarray(x if x.dtype == np.float64 else x.astype(np.float32, copy=False))
