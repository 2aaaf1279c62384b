"""Order statistics of |x| by selection on bit patterns, without sorting.

The bit pattern of a non-negative IEEE number, read as an integer, keeps its order (NaN above inf). So one integer
routine serves fp64, fp32, bf16 and fp16 with no wider copy, and numpy's SIMD selection runs about twice as fast on the
integers as on the floats. Three ways to the same two order statistics, at the ranks k and k + 1:

    partition   host: numpy's introselect on one copy of |x|, all rows at once
    bracket     host: one pass without a copy around a guess; exact, or it says that the guess was no good
    bisect      any device, jax, torch.compile: counting passes only, no host round trip, no data-dependent branch
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from ..arrays import Array, cast, constant, double, namespace, on_host

WIDTH = 1 / 16  # half width of the bracket around a guess: keeps .8 % of a Gaussian at q = .995, 4 % at the median
OPEN = 0.9  # from this q on the bracket has no upper end: what lies above is few, and counting it costs a pass
_CHUNK = 1 << 16  # entries per step of the one-pass selection: its buffers stay in the L2 cache
_HUGE = 1 << 22  # entries of a row from which on a copy costs more than it saves: one pass around a guess is faster
_LONG = 1 << 17  # entries of a row from which on it is worth looking for ties
_SAMPLE = 1 << 14  # entries from which that guess is made where none is given
_APART = 1 << 12  # entries of a row from which on rows with zeros are selected one by one, without another copy
_PARALLEL = 1 << 18  # entries that are worth waking torch's threads for

# Everything above the bit pattern of inf is NaN.
INFINITY_BITS = {"float64": 0x7FF0 << 48, "float32": 0x7F80 << 16, "bfloat16": 0x7F80, "float16": 0x7C00}


class OrderStatistics(NamedTuple):
    """Bit patterns of the two order statistics around a position in each row, with what is needed to interpolate."""

    low: Array  # (rows,) integers
    high: Array  # (rows,) integers
    top: Array  # (rows,) integers
    fraction: Any  # (rows,) or one number for all, in [0, 1)


def select(x: Array, shape: tuple[int, int], q: float, nonzero: bool, near: np.ndarray | None) -> OrderStatistics:
    """Order statistics of |x|, seen as (count, n), around position q (n - 1); with `nonzero` zeros do not count."""
    if not on_host(x):
        return bisect(magnitude_bits(x.reshape(shape)), q, nonzero)
    if shape[1] < _LONG or (shape[1] < _HUGE and not _has_ties(x)):
        return partition(_magnitudes(x).reshape(shape), q, nonzero)
    each = []
    for i, row in enumerate(x.reshape(shape)):
        ends = _ends_by_sample(row, q, nonzero) if near is None else _ends_around(row, float(near[i]), q)
        each.append(bracket(_raw(row), q, nonzero, ends) or partition(_magnitudes(row)[None], q, nonzero))
    return OrderStatistics(*(np.hstack(column) for column in zip(*each, strict=True)))


def partition(bits: np.ndarray, q: float, nonzero: bool) -> OrderStatistics:
    """By numpy's introselect, in place in the magnitudes `bits`, (count, n)."""
    count, n = bits.shape
    zeros = _count_zeros(bits) if nonzero and count and bits.min() == 0 else None
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
    """By one pass over the 1-d `raw` bits, keeping what lies between `ends`; None if that misses or is too much."""
    kept = _keep(raw, *ends, nonzero)
    return None if kept is None else among(kept, q, raw.size, raw.dtype)


def among(kept: "Kept", q: float, n: int, dtype: Any) -> OrderStatistics | None:
    """The order statistics from what a pass over n entries kept; None if it missed them."""
    rank, fraction = position(q, n, np.array(kept.zeros) if kept.zeros else None)
    place = rank - kept.below - kept.at_low
    low: int | None
    high: int | None
    if 0 <= place < kept.inside.size - 1:  # the usual case: both with one selection
        low, high = (int(value[0]) for value in _pick(kept.inside[None], place)[:2])
    else:
        low, high = kept.entry(rank), kept.entry(min(rank + 1, n - 1))
    if low is None or high is None:
        return None
    values = [np.array([value], dtype) for value in (low, high, kept.top)]
    return OrderStatistics(values[0], values[1], values[2], fraction)


def bisect(bits: Array, q: float, nonzero: bool) -> OrderStatistics:
    """By halving the range of integers: one counting pass per bit over `bits`, (count, n), wherever they are."""
    xp = namespace(bits)
    largest = xp.iinfo(bits.dtype).max
    ranks, fraction = position(q, bits.shape[1], (bits == 0).sum(-1) if nonzero else None)
    low = xp.zeros_like(bits[:, 0])
    high = xp.full_like(low, largest)
    for _ in range(xp.iinfo(bits.dtype).bits - 1):
        middle = low + (high - low) // 2
        enough = _count_up_to(bits, middle) > ranks
        low, high = xp.where(enough, low, middle + 1), xp.where(enough, middle, high)
    top = xp.amax(bits, -1)
    beyond = xp.amin(xp.where(bits > low[:, None], bits, largest), -1)
    tied = (_count_up_to(bits, low) > ranks + 1) | (low == top)
    return OrderStatistics(low, xp.where(tied, low, beyond), top, fraction)


def magnitude_bits(x: Array) -> Array:
    """The bit pattern of |x| as signed integers of the same width: the sign bit cleared."""
    raw = x.view(_integer(x))
    return raw & namespace(x).iinfo(raw.dtype).max


def float_of_bits(bits: Array, name: str) -> Array:
    """The numbers with these bit patterns in the dtype called `name`; bf16, which numpy lacks, as fp32."""
    xp = namespace(bits)
    if name == "bfloat16":
        bits, name = cast(bits, xp.int32) << 16, "float32"  # bf16 is the upper half of fp32
    return bits.view(getattr(xp, name))


def _integer(x: Array) -> Any:
    return getattr(namespace(x), f"int{8 * x.dtype.itemsize}")


def position(q: float, n: int, zeros: Array | None) -> tuple[Any, Any]:
    """Rank of the lower order statistic among n entries, `zeros` of them not counted, and the fraction of the way up.

    The position is taken in fp64 (jax without x64 and with zeros to leave out: fp32).
    """
    if zeros is None:
        place = q * (n - 1)
        return int(place), place - int(place)
    xp = namespace(zeros)
    place = q * double(xp.clip(n - 1 - zeros, 0, None))
    floor = xp.floor(place)
    return xp.clip(zeros + cast(floor, zeros.dtype), None, n - 1), place - floor


def _raw(x: Array) -> np.ndarray:
    """The bit patterns of a torch tensor or numpy array on the host, signs and all, without a copy."""
    raw = x.view(_integer(x))
    return raw.numpy() if isinstance(raw, torch.Tensor) else raw


def _magnitudes(x: Array) -> np.ndarray:
    """A contiguous copy of the bit patterns of |x|, by torch's threads where there is enough work to wake them."""
    raw = _raw(x)
    bits, mask = np.empty_like(raw, order="C", subok=False), np.iinfo(raw.dtype).max
    if isinstance(x, torch.Tensor) and raw.size >= _PARALLEL:
        torch.bitwise_and(x.view(_integer(x)), mask, out=torch.from_numpy(bits))
    else:
        np.bitwise_and(raw, mask, out=bits)
    return bits


def _pick(bits: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The entries of rank k and k + 1 (the last rank: itself) and the largest, of each row; reorders `bits`."""
    bits.partition(k, axis=-1)
    upper = bits[:, min(k + 1, bits.shape[1] - 1) :]
    return bits[:, k], upper.min(-1), upper.max(-1)


def _ends_around(row: Array, guess: float, q: float) -> tuple[int, int | None]:
    """The bit patterns of the guess less and plus a sixteenth; for a high q no upper end."""
    low, high = (int(magnitude_bits(constant(guess * (1 + side), row))) for side in (-WIDTH, WIDTH))
    return low, None if q >= OPEN else high


def _ends_by_sample(row: Array, q: float, nonzero: bool) -> tuple[int, int | None]:
    """Four standard deviations of the rank to either side, from a strided sample (Floyd and Rivest 1975)."""
    sample = _magnitudes(row[:: row.shape[0] // _SAMPLE | 1])[None]
    margin = 4 * math.sqrt(q * (1 - q) / sample.size) + 2 / sample.size
    low, high = (partition(sample, min(max(level, 0.0), 1.0), nonzero) for level in (q - margin, q + margin))
    return int(low.low[0]), None if q >= OPEN else int(high.high[0])


class Kept(NamedTuple):
    """What one pass found: how many entries lie below the lower end, at it and at the upper, and those in between."""

    ends: tuple[int, int | None]
    below: int
    at_low: int
    at_high: int
    inside: np.ndarray
    zeros: int
    top: int  # the largest of all

    def entry(self, rank: int) -> int | None:
        """The entry of this rank among all, or None where it was not kept."""
        place = rank - self.below
        if place < 0:
            return None
        if place < self.at_low:
            return self.ends[0]
        place -= self.at_low
        if place < self.inside.size:
            return int(_pick(self.inside[None], place)[0][0])
        return self.ends[1] if place < self.inside.size + self.at_high else None


def _keep(raw: np.ndarray, low: int, high: int | None, count_zeros: bool) -> Kept | None:
    """One pass over `raw`; None once more than a quarter of all would have to be kept.

    What equals an end is counted, not kept: ties, such as |u| = 1 all over in Adam's first step, cost nothing extra.
    """
    reached = at_high = above = zeros = top = 0
    kept: list[np.ndarray] = []
    room = raw.size // 4
    mask, buffer = np.iinfo(raw.dtype).max, np.empty(_CHUNK, raw.dtype)
    for start in range(0, raw.size, _CHUNK):
        piece = raw[start : start + _CHUNK]
        bits = np.bitwise_and(piece, mask, out=buffer[: piece.size])
        reached += int(np.count_nonzero(bits >= low))
        inside = bits > low
        if count_zeros and bits.min() == 0:
            zeros += piece.size - int(np.count_nonzero(bits))
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
    return Kept((low, high), raw.size - reached, at_low, at_high, between, zeros, top)


def _has_ties(x: Array) -> bool:
    """Whether a sample of some 1000 entries repeats itself: on few distinct values numpy's selection is far slower."""
    per_side = round(1024 ** (1 / max(x.ndim, 1)))
    sample = np.sort(
        _magnitudes(x[tuple([slice(None, None, max(side // per_side, 1)) for side in x.shape])]), axis=None
    )
    return bool(np.count_nonzero(np.diff(sample) == 0) > sample.size // 16)


def _count_zeros(bits: np.ndarray) -> np.ndarray:
    """How many entries of each row are 0; with `axis` numpy would make a copy as booleans."""
    if bits.shape[1] < _APART:
        return bits.shape[1] - np.count_nonzero(bits, axis=-1)
    return np.array([row.size - np.count_nonzero(row) for row in bits])


def _count_up_to(bits: Array, limit: Array) -> Array:
    return (bits <= limit[:, None]).sum(-1)
