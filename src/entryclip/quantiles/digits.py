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
    n       the number of entries in each
    """

    def __init__(self, count: int, n: int):
        self.count, self.n = count, n

    def local(self, x: Tensor) -> Tensor:
        """Return the part of `x`, (count, ...), that belongs to the rows at hand."""
        return x

    def total(self, counts: Tensor) -> Tensor:
        """Sum the counts of the rows at hand, (rows, k), over all processes: (count, k)."""
        return counts

    def smallest(self, values: Tensor) -> Tensor:
        """Take the minimum of the rows at hand, (rows, k), over all processes: (count, k)."""
        return values


def select_by_digits(bits: Tensor, rows: Rows, q: float, nonzero: bool) -> OrderStatistics:
    """Select around position q (n - 1) of each row; `bits` are the magnitudes at hand, (rows, entries)."""
    width = 8 * bits.element_size() - 1
    found = torch.zeros(rows.count, 1, dtype=bits.dtype, device=bits.device)
    rank: Any = None
    fraction: Any = None
    tied: Any = None
    for shift in reversed(range(0, width, _DIGIT)):
        below = rows.local((found << _DIGIT).long() - 1)  # the largest prefix of this length that is too small
        counts = _histogram((bits >> shift if shift else bits) - below, rows.n)
        if rank is None and nonzero:  # nothing lies below the first digit: that place carries the number of zeros
            counts = torch.cat([(bits == 0).sum(-1, keepdim=True, dtype=counts.dtype), counts[:, 1:]], -1)
        counts = rows.total(counts)
        up_to = counts.cumsum(-1)
        if rank is None:
            zeros = counts[:, :1].long()
            rank, fraction = position(q, rows.n, zeros if nonzero else None)
            up_to = up_to - zeros
        place = (up_to <= rank).sum(-1, keepdim=True)  # 1 + the digit: place 0 counts what lies below the prefix
        tied = up_to.gather(-1, place) > rank + 1
        found = (found << _DIGIT) + (place - 1).to(bits.dtype)
    return _with_neighbours(bits, rows, found, tied, fraction[:, 0] if nonzero else fraction)


def _histogram(digits: Tensor, n: int) -> Tensor:
    """Count in each row the numbers up to 0, and those equal to 1, 2, ... up to the number of bins; larger ones not."""
    exact = torch.int32 if n < 2**31 else torch.int64
    ones = torch.ones((), dtype=exact, device=digits.device).expand(digits.shape)
    counts = torch.zeros(len(digits), _BINS + 2, dtype=exact, device=digits.device)
    return counts.scatter_add(1, digits.clamp(0, _BINS + 1), ones)[:, :-1]


def _with_neighbours(bits: Tensor, rows: Rows, found: Tensor, tied: Tensor, fraction: Any) -> OrderStatistics:
    """Add to the entry found, (count, 1), the one of the next rank and the largest; `tied` rows have another equal."""
    largest = torch.iinfo(bits.dtype).max
    if bits.numel():
        above = torch.where(bits > rows.local(found), bits, largest).amin(-1)
        ends = torch.stack([above, -bits.amax(-1)], -1)
    else:
        ends = torch.stack([bits.new_full((len(bits),), largest), bits.new_zeros(len(bits))], -1)
    above, top = rows.smallest(ends).unbind(-1)
    low, top = found[:, 0], -top
    return OrderStatistics(low, torch.where(tied[:, 0] | (low == top), low, above), top, fraction)
