"""A screen for single large entries of a gradient, cheap enough for every step of a training loop.

With z the entries over the scales of their rows and columns, those of an earlier step, the statistic of a matrix is

    T = largest |z| over the median of the rows' largest |z|, rows of zeros left out

A single large entry counts in one row alone. A batch with larger gradients moves all rows, so T stays. A matrix is a
suspect, to be looked at with scales of its own, if T says two things. The largest entry is half of `dominant_size` or
more: the scales may be off by that much. And it has grown by more than `GROWTH` over the running mean of T: an entry
that is large in every step is seen by the monitor's readings, and is no news. On a host the work is done in pieces that
stay in the cache, so that it costs one pass over the gradient.
"""

import math

import torch
from torch import Tensor

from ..arrays import on_host
from ..auto_threshold import gaussian_guard
from ..scales import RowColumnScales

GROWTH = 2.0  # the factor by which the statistic of a suspect exceeds its running mean
_FALSE_ALARMS = 1e-6  # the share of matrices of Gaussian noise with an entry that is called dominant by chance
_STALE = 2.0  # the factor by which scales of an earlier step may be off
_BETA = 0.9  # the memory of the running mean, in steps: ten
_PIECE = 1 << 17  # entries that are worked on at a time on a host


def dominant_size(m: int, n: int) -> float:
    """Return the size, in scales, below which an entry of an m x n matrix is no spike.

    Below sqrt(max(m, n)) / 2 it carries less than half of sigma_1, which is at least ||E||_F / sqrt(min(m, n)). And an
    entry that so many Gaussian ones show by chance is none: in small matrices that alone is more.

    >>> round(dominant_size(64, 64)), round(dominant_size(768, 3072))
    (11, 28)
    """
    return max(math.sqrt(max(m, n)) / 2, gaussian_guard(m, n, _FALSE_ALARMS))


class SpikeScreen:
    """The screen of one matrix: the scales that its entries are divided by, and the running mean of its statistic."""

    def __init__(self) -> None:
        self._rows = self._columns = torch.empty(0)
        self._least = 0.0  # the value of the statistic below which no entry can dominate
        self._mean: float | None = None

    @property
    def is_ready(self) -> bool:
        """Whether there are scales to divide by."""
        return self._rows.numel() > 0

    def set_scales(self, scales: RowColumnScales, x: Tensor) -> None:
        """Divide by these scales of `x`, (m, n), from now on; the mean of the statistic begins anew."""
        self._rows, self._columns = _inverse(scales.rows), _inverse(scales.columns * scales.overall)
        self._mean = None  # the value of `x` itself is smaller than that of later steps: the scales were fitted to it
        self._least = dominant_size(*x.shape) / _STALE / float(self._maxima(x)[1])

    def statistic(self, x: Tensor) -> Tensor:
        """Return T of `x`, (m, n), as a tensor of no dimensions, so that a device need not be waited for."""
        top, typical = self._maxima(x)
        return top / typical

    def is_suspect(self, statistic: float) -> bool:
        """Tell whether a value of the statistic calls for a closer look, and take it into the running mean."""
        if not math.isfinite(statistic):
            return True
        limit = _STALE * self._least if self._mean is None else max(GROWTH * self._mean, self._least)
        calm = min(statistic, limit)
        self._mean = calm if self._mean is None else _BETA * self._mean + (1 - _BETA) * calm
        return statistic > limit

    def _maxima(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the largest |z|, and the median over rows of the largest |z| of each."""
        rows, columns = self._rows, self._columns
        if not x.is_contiguous() and x.mT.is_contiguous():  # stored as (in, out)
            x, rows, columns = x.mT, columns, rows
        few = max(_PIECE // x.shape[1], 1) if on_host(x) else len(x)
        pieces = [torch.linalg.vector_norm(piece * columns, torch.inf, dim=1) for piece in torch.split(x, few)]
        maxima = torch.cat(pieces) * rows
        return maxima.amax(), torch.where(maxima > 0, maxima, torch.nan).nanmedian()


def _inverse(scale: Tensor) -> Tensor:
    """Return 1 / scale, and 1 where a row or column was zero."""
    return torch.where(scale > 0, scale, 1.0).reciprocal()
