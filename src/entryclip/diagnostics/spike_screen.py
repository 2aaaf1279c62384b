"""A screen for single large entries of a gradient, cheap enough for every step of a training loop.

With z the entries over the scales of their rows and columns, those of an earlier step, the statistic of a matrix is

    T = (largest over median of the rows' sum of z^4) ^ (1/4), rows of zeros left out

A single large entry counts in one row's sum alone. A batch with larger gradients moves all sums, so T stays. Between
two steps T of ordinary noise hardly changes: one that grows by more than `GROWTH` over its running mean makes a
suspect, to be looked at with scales of its own. An entry that carries half of sigma_1 of square Gaussian noise of side
n is of size sqrt(3 n) at least, by the law of the leading triplet of a rank-one matrix in noise (Benaych-Georges and
Nadakuditi 2012), which raises T by a factor of 2 or more from n = 64 on. Smaller matrices have no screen: to look at
them closely is cheap. On a host the work is done in pieces that stay in the cache, so that it costs one pass.
"""

import math

import torch
from torch import Tensor

from ..arrays import on_host
from ..scales import RowColumnScales

GROWTH = 1.4  # the factor by which the statistic of a suspect exceeds its running mean
_BETA = 0.9  # the memory of that mean, in steps: ten
_SMALL = 64  # matrices whose sides are all shorter are always suspects
_PIECE = 1 << 17  # entries that are worked on at a time on a host


class SpikeScreen:
    """The screen of one matrix: the scales that its entries are divided by, and the running mean of its statistic."""

    def __init__(self) -> None:
        self._rows = self._columns = torch.empty(0)
        self._mean = 0.0

    @property
    def is_ready(self) -> bool:
        """Whether there are scales to divide by; never for a small matrix."""
        return self._rows.numel() > 0

    def set_scales(self, scales: RowColumnScales, x: Tensor) -> None:
        """Divide by these scales of rows and columns from now on; the mean of the statistic begins anew, with `x`."""
        if max(x.shape) < _SMALL:
            return
        self._rows, self._columns = _inverse(scales.rows), _inverse(scales.columns * scales.overall)
        self._mean = float(self.statistic(x))

    def statistic(self, x: Tensor) -> Tensor:
        """Return T of `x`, (m, n), as a tensor of no dimensions, so that a device need not be waited for."""
        rows, columns = self._rows, self._columns
        if not x.is_contiguous() and x.mT.is_contiguous():  # stored as (in, out)
            x, rows, columns = x.mT, columns, rows
        few = max(_PIECE // x.shape[1], 1) if on_host(x) else len(x)
        roots = torch.cat([_root_of_fourth_powers(piece, columns) for piece in x.split(few)]) * rows.square()
        return (roots.amax() / torch.where(roots > 0, roots, torch.nan).nanmedian()).sqrt()

    def is_suspect(self, statistic: float) -> bool:
        """Tell whether a value of the statistic calls for a closer look, and take it into the running mean."""
        if not math.isfinite(self._mean):
            return True
        limit = GROWTH * self._mean
        self._mean = _BETA * self._mean + (1 - _BETA) * min(statistic, limit)
        return not statistic <= limit  # NaN is suspect


def _root_of_fourth_powers(x: Tensor, inverse_columns: Tensor) -> Tensor:
    """Return the square root of each row's sum of z^4, the scales of rows left in."""
    return torch.linalg.vector_norm((x * inverse_columns).square_(), dim=1)


def _inverse(scale: Tensor) -> Tensor:
    """Return 1 / scale, and 1 where a row or column was zero."""
    return torch.where(scale > 0, scale, 1.0).reciprocal()
