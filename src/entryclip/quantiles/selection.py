"""Order statistics of |x| on the host, selected on bit patterns without sorting. Two ways to the same numbers:

partition   numpy's introselect on one copy of |x|, all rows at once
bracket     one pass without a copy that keeps only the entries between two ends; exact, or None where that misses
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from ..arrays import Array
from .order import OrderStatistics, position, raw_bits

OPEN = 0.9  # from this q on a bracket has no upper end: few entries lie above, and counting them costs a pass
WIDTH = 1 / 16  # half width of a bracket around the last step's quantile, in the optimizers' fused kernels
_CHUNK = 1 << 16  # entries per step of the one-pass selection: its buffers stay in the L2 cache
_HUGE = 1 << 22  # entries of a row from which on a copy costs more than it saves: one pass is faster
_LONG = 1 << 17  # entries of a row from which on it is worth looking for ties
_SAMPLE = 1 << 14  # entries of the sample from which the ends of a bracket are estimated
_APART = 1 << 12  # entries of a row from which on rows with zeros are selected one by one, without another copy
_PARALLEL = 1 << 18  # entries that are worth waking torch's threads for


def select(x: Array, shape: tuple[int, int], q: float, nonzero: bool) -> OrderStatistics:
    """Find the order statistics of |x|, viewed as `shape` (rows, n), around position q (n - 1) of each row."""
    if shape[1] < _LONG or (shape[1] < _HUGE and not _has_ties(x)):
        return partition(_magnitudes(x).reshape(shape), q, nonzero)
    each = [
        bracket(_raw(row), q, nonzero, _ends_by_sample(row, q, nonzero))
        or partition(_magnitudes(row)[None], q, nonzero)
        for row in x.reshape(shape)
    ]
    return OrderStatistics(*(np.hstack(column) for column in zip(*each, strict=True)))


def partition(bits: np.ndarray, q: float, nonzero: bool) -> OrderStatistics:
    """Select by numpy's introselect, which reorders the magnitudes `bits`, (rows, n); `nonzero` leaves zeros out."""
    count, n = bits.shape
    zeros = _count_zeros(bits) if nonzero and bits.min() == 0 else None
    ranks, fraction = position(q, n, zeros)
    if zeros is None:
        return OrderStatistics(*_pick(bits, ranks), fraction)
    low, high, top = (np.empty(count, bits.dtype) for _ in range(3))
    if n >= _APART:
        for i, k in enumerate(ranks):
            low[i : i + 1], high[i : i + 1], top[i : i + 1] = _pick(bits[i : i + 1], k)
        return OrderStatistics(low, high, top, fraction)
    for k in np.unique(ranks):  # short rows with the same number of zeros together
        mine = ranks == k
        low[mine], high[mine], top[mine] = _pick(bits[mine], k)
    return OrderStatistics(low, high, top, fraction)


def bracket(raw: np.ndarray, q: float, nonzero: bool, ends: tuple[int, int | None]) -> OrderStatistics | None:
    """Select from the entries of the 1-d `raw` bits between `ends`, in one pass; None if these miss or are too many."""
    kept = _keep(raw, *ends, nonzero)
    if kept is None:
        return None
    rank, fraction = position(q, raw.size, np.array(kept.zeros) if kept.zeros else None)
    place = rank - kept.below - kept.at_low
    low: int | None
    high: int | None
    if 0 <= place < kept.inside.size - 1:  # the usual case: both with one selection
        low, high = (int(value[0]) for value in _pick(kept.inside[None], place)[:2])
    else:
        low, high = kept.entry(rank), kept.entry(min(rank + 1, raw.size - 1))
    if low is None or high is None:
        return None
    values = [np.array([value], raw.dtype) for value in (low, high, kept.top)]
    return OrderStatistics(values[0], values[1], values[2], fraction)


class _Kept(NamedTuple):
    """The result of one pass: how many entries lie below the lower end, at it and at the upper, and those between."""

    ends: tuple[int, int | None]
    below: int
    at_low: int
    at_high: int
    inside: np.ndarray
    zeros: int
    top: int  # the largest of all

    def entry(self, rank: int) -> int | None:
        """Return the entry of this rank among all, or None where it was not kept."""
        place = rank - self.below
        if place < 0:
            return None
        if place < self.at_low:
            return self.ends[0]
        place -= self.at_low
        if place < self.inside.size:
            return int(_pick(self.inside[None], place)[0][0])
        return self.ends[1] if place < self.inside.size + self.at_high else None


def _keep(raw: np.ndarray, low: int, high: int | None, count_zeros: bool) -> _Kept | None:
    """Pass over `raw` once; None as soon as more than a quarter of all entries would have to be kept.

    Entries equal to an end are counted, not kept: ties, such as |u| = 1 all over in Adam's first step, cost nothing.
    """
    reached = at_high = above = zeros = top = 0
    kept: list[np.ndarray] = []
    room = raw.size // 4
    mask, buffer = np.iinfo(raw.dtype).max, np.empty(_CHUNK, raw.dtype)
    for start in range(0, raw.size, _CHUNK):
        chunk = raw[start : start + _CHUNK]
        bits = np.bitwise_and(chunk, mask, out=buffer[: chunk.size])
        reached += int(np.count_nonzero(bits >= low))
        inside = bits > low
        if count_zeros and bits.min() == 0:
            zeros += chunk.size - int(np.count_nonzero(bits))
        if high is not None:
            above += int(np.count_nonzero(bits > high))
            at_high += int(np.count_nonzero(bits == high)) if high > low else 0
            inside &= bits < high
        top = max(top, int(bits.max()))
        kept.append(bits[inside.nonzero()[0]])
        room -= kept[-1].size
        if room < 0:
            return None
    between = np.concatenate(kept)
    at_low = reached - above - at_high - between.size
    return _Kept((low, high), raw.size - reached, at_low, at_high, between, zeros, top)


def _ends_by_sample(row: Array, q: float, nonzero: bool) -> tuple[int, int | None]:
    """Estimate ends four standard deviations of the rank to either side, from a sample (Floyd and Rivest 1975)."""
    sample = _magnitudes(row[:: row.shape[0] // _SAMPLE | 1])[None]
    margin = 4 * math.sqrt(q * (1 - q) / sample.size) + 2 / sample.size
    low, high = (partition(sample, min(max(level, 0.0), 1.0), nonzero) for level in (q - margin, q + margin))
    return int(low.low[0]), None if q >= OPEN else int(high.high[0])


def _raw(x: Array) -> np.ndarray:
    """View the bit patterns of a torch tensor or numpy array on the host, with their signs, without a copy."""
    raw: Any = raw_bits(x)
    return raw.numpy() if isinstance(raw, torch.Tensor) else raw


def _magnitudes(x: Array) -> np.ndarray:
    """Copy the bit patterns of |x| to contiguous memory, by torch's threads where there is enough work to wake them."""
    raw = _raw(x)
    bits, mask = np.empty_like(raw, order="C", subok=False), np.iinfo(raw.dtype).max
    if isinstance(x, torch.Tensor) and raw.size >= _PARALLEL:
        torch.bitwise_and(raw_bits(x), mask, out=torch.from_numpy(bits))
    else:
        np.bitwise_and(raw, mask, out=bits)
    return bits


def _pick(bits: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the entries of rank k and k + 1 (the last rank: itself) and the largest, of each row; reorders `bits`."""
    bits.partition(k, axis=-1)
    upper = bits[:, min(k + 1, bits.shape[1] - 1) :]
    return bits[:, k], upper.min(-1), upper.max(-1)


def _has_ties(x: Array) -> bool:
    """Tell whether a sample of some 1000 entries repeats itself: numpy's selection is far slower on few values."""
    per_side = round(1024 ** (1 / max(x.ndim, 1)))
    sample = np.sort(
        _magnitudes(x[tuple([slice(None, None, max(side // per_side, 1)) for side in x.shape])]), axis=None
    )
    return bool(np.count_nonzero(np.diff(sample) == 0) > sample.size // 16)


def _count_zeros(bits: np.ndarray) -> np.ndarray:
    """Count the zeros of each row; with `axis` numpy would make a copy as booleans."""
    if bits.shape[1] < _APART:
        return bits.shape[1] - np.count_nonzero(bits, axis=-1)
    return np.array([row.size - np.count_nonzero(row) for row in bits])
