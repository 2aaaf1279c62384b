"""Order statistics of |x| by radix selection, all rows at once: on any device, and for rows spread over processes.

The magnitudes' bit patterns are read eleven bits at a time, the most significant digit first. Each pass counts, for
every row, the entries below the prefix found so far, those with each value of the next digit behind it, and those
above; the counts choose the digit. An fp32 needs three passes. The host never waits: nothing depends on a value.
"""

from typing import Any

import torch
from torch import Tensor

from .order import OrderStatistics, position

_DIGIT = 11  # bits counted at a time
_BINS = 1 << _DIGIT


class Rows:
    """Rows of which every entry is at hand. `sharded.py` has a subclass for rows that are spread over processes.

    count   the number of rows
    n       the number of entries in each: one number for all, or a column (count, 1)
    most    the largest number of entries in a row
    """

    def __init__(self, count: int, n: Any, most: int):
        self.count, self.n, self.most = count, n, most

    @classmethod
    def of(cls, blocks: list[Tensor]) -> "Rows":
        """Return the rows of some blocks, (rows, entries) each, one block below the other."""
        return cls(sum(map(len, blocks)), row_lengths([(len(b), b.shape[1]) for b in blocks], blocks[0]), _most(blocks))

    def local(self, x: Tensor) -> Tensor:
        """Return the part of `x`, (count, ...), that belongs to the rows at hand."""
        return x

    def total(self, counts: Tensor) -> Tensor:
        """Sum the counts of the rows at hand, (rows, k), over all processes: (count, k)."""
        return counts

    def smallest(self, values: Tensor) -> Tensor:
        """Take the minimum of the rows at hand, (rows, k), over all processes: (count, k)."""
        return values


def row_lengths(sizes: list[tuple[int, int]], like: Tensor) -> Any:
    """Return the number of entries of each row, of some numbers of rows with as many entries each.

    It is one number where all rows are equally long, else a column on the device of `like`.
    """
    if len({n for _, n in sizes}) == 1:
        return sizes[0][1]
    return torch.cat([torch.full((count, 1), n, device=like.device) for count, n in sizes])


def select_by_digits(blocks: list[Tensor], rows: Rows, q: float, nonzero: bool) -> OrderStatistics:
    """Select around position q (n - 1) of each row; the magnitudes at hand are in `blocks`, (rows, entries) each.

    Rows of different lengths need `nonzero`.
    """
    dtype, device, lengths = blocks[0].dtype, blocks[0].device, [len(bits) for bits in blocks]
    found = torch.zeros(rows.count, 1, dtype=dtype, device=device)
    rank: Any = None
    fraction: Any = None
    tied: Any = None
    for shift in reversed(range(0, 8 * blocks[0].element_size() - 1, _DIGIT)):
        below = torch.split(rows.local((found << _DIGIT).long() - 1), lengths)  # the largest prefix that is too small
        pairs = zip(blocks, below, strict=True)
        counts = joined([_histogram((bits >> shift if shift else bits) - low, rows.most) for bits, low in pairs])
        if rank is None and nonzero:  # nothing lies below the first digit: that place carries the number of zeros
            zeros = joined([(bits == 0).sum(-1, keepdim=True, dtype=counts.dtype) for bits in blocks])
            counts = torch.cat([zeros, counts[:, 1:]], -1)
        counts = rows.total(counts)
        up_to = counts.cumsum(-1)
        if rank is None:
            zeros = counts[:, :1].long()
            rank, fraction = position(q, rows.n, zeros if nonzero else None)
            up_to = up_to - zeros
        place = (up_to <= rank).sum(-1, keepdim=True)  # 1 + the digit: place 0 counts what lies below the prefix
        tied = up_to.gather(-1, place) > rank + 1
        found = (found << _DIGIT) + (place - 1).to(dtype)
    return _with_neighbours(blocks, rows, found, tied, fraction[:, 0] if nonzero else fraction)


def joined(blocks: list[Tensor]) -> Tensor:
    """Put blocks of rows below each other; a single one is returned as it is."""
    return torch.cat(blocks) if len(blocks) > 1 else blocks[0]


def _most(blocks: list[Tensor]) -> int:
    return max(bits.shape[1] for bits in blocks)


def _histogram(digits: Tensor, n: int) -> Tensor:
    """Count in each row the numbers up to 0, and those equal to 1, 2, ... up to the number of bins; larger ones not."""
    exact = torch.int32 if n < 2**31 else torch.int64
    ones = torch.ones((), dtype=exact, device=digits.device).expand(digits.shape)
    counts = torch.zeros(len(digits), _BINS + 2, dtype=exact, device=digits.device)
    return counts.scatter_add(1, digits.clamp(0, _BINS + 1), ones)[:, :-1]


def _with_neighbours(blocks: list[Tensor], rows: Rows, found: Tensor, tied: Tensor, fraction: Any) -> OrderStatistics:
    """Add to the entry found, (count, 1), the one of the next rank and the largest; `tied` rows have another equal."""
    lows = torch.split(rows.local(found), [len(bits) for bits in blocks])
    ends = joined([_ends(bits, low) for bits, low in zip(blocks, lows, strict=True)])
    above, top = rows.smallest(ends).unbind(-1)
    low, top = found[:, 0], -top
    return OrderStatistics(low, torch.where(tied[:, 0] | (low == top), low, above), top, fraction)


def _ends(bits: Tensor, low: Tensor) -> Tensor:
    """Return the smallest entry above `low` of each row, and the negative of the largest: both are minima."""
    largest = torch.iinfo(bits.dtype).max
    if not bits.numel():
        return torch.stack([bits.new_full((len(bits),), largest), bits.new_zeros(len(bits))], -1)
    return torch.stack([torch.where(bits > low, bits, largest).amin(-1), -bits.amax(-1)], -1)
