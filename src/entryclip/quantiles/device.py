"""Order statistics of |x| of a torch tensor that the host cannot read: on a device, under vmap, or while traced.

q >= 0.9   the largest entries by `torch.topk`, of which the two order statistics are picked by rank
q < 0.9    digit by digit, in digits.py

Neither waits for the host or branches on the data, so both can be captured by torch.compile.
"""

import torch
from torch import Tensor

from .digits import Rows, select_by_digits
from .order import OrderStatistics, position

_FEW = 0.9  # from this q on the entries above the quantile are few enough to sort


def select_on_device(bits: Tensor, q: float, nonzero: bool) -> OrderStatistics:
    """Find the order statistics of the magnitudes `bits`, (rows, n), around position q (n - 1) of each row."""
    if q >= _FEW:
        return select_by_topk(bits, q, nonzero)
    return select_by_digits(bits, Rows(*bits.shape), q, nonzero)


def select_by_topk(bits: Tensor, q: float, nonzero: bool) -> OrderStatistics:
    """Select among the largest entries of each row, as many as could lie at or above the position.

    Leaving zeros out only moves the rank up, so their number, which the host does not know, need not be known.
    """
    n = bits.shape[1]
    few = min(n - int(q * (n - 1)) + 1, n)  # one more than needed: the rank is rounded on the way
    largest = torch.topk(bits, few, dim=-1).values  # descending
    if not nonzero:
        rank, fraction = position(q, n, None)
        place = n - 1 - rank
        return OrderStatistics(largest[:, place], largest[:, max(place - 1, 0)], largest[:, 0], fraction)
    rank, fraction = position(q, n, (bits == 0).sum(-1, keepdim=True))
    places = (torch.arange(n - 1, n - 3, -1, device=bits.device) - rank).clamp(0, few - 1)  # its own, and the next
    low, high = largest.gather(-1, places).unbind(-1)
    return OrderStatistics(low, high, largest[:, 0], fraction[:, 0])
