"""Order statistics of |x| of a torch tensor that the host cannot read: on a device, under vmap, or while traced.

q >= 0.9   the largest entries by `torch.topk`, of which the two order statistics are picked by rank
q < 0.9    digit by digit, in digits.py

Neither waits for the host or branches on the data, so both can be captured by torch.compile.
"""

import torch
from torch import Tensor

from .digits import Rows, joined, select_by_digits
from .order import OrderStatistics

_FEW = 0.9  # from this q on the entries above the quantile are few enough to sort


def select_on_device(blocks: list[Tensor], q: float, nonzero: bool) -> OrderStatistics:
    """Find the order statistics around position q (n - 1) of each row of magnitudes, in `blocks` of (rows, n) each.

    Blocks of different n are of use with `nonzero` only.
    """
    if q >= _FEW:
        return select_by_topk(blocks, q, nonzero)
    return select_by_digits(blocks, Rows.of(blocks), q, nonzero)


def select_by_topk(blocks: list[Tensor], q: float, nonzero: bool) -> OrderStatistics:
    """Select among the largest entries of each row, as many as could lie at or above the position.

    Leaving zeros out only moves the rank up, so their number, which the host does not know, need not be known.
    """
    # One more than position q (n - 1) asks for: with fewer ranked entries it may be rounded the other way.
    few = [min(n - int(q * (n - 1)) + 1, n) for n in (bits.shape[1] for bits in blocks)]
    largest = [torch.topk(bits, k, dim=-1).values for bits, k in zip(blocks, few, strict=True)]  # descending
    last = (joined([_count(bits, nonzero) for bits in blocks]) - 1).clamp(min=0)
    place = q * last.double()
    floor = place.floor()
    own = last - floor.long()  # counted from the largest
    places = torch.split(torch.stack([own, (own - 1).clamp(min=0)], -1), [len(bits) for bits in blocks])
    picked = joined([values.gather(-1, two) for values, two in zip(largest, places, strict=True)])
    return OrderStatistics(picked[:, 0], picked[:, 1], joined([values[:, 0] for values in largest]), place - floor)


def _count(bits: Tensor, nonzero: bool) -> Tensor:
    """Return how many entries of each row are ranked, (rows,)."""
    if nonzero:
        return (bits != 0).sum(-1)
    return torch.full((len(bits),), bits.shape[1], device=bits.device)
