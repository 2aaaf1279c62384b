"""The entries of a gradient that stand out from their row and column.

The rows and columns of a gradient differ in scale, so that its largest entry is often just the crossing of a large row
and a large column. Divided by robust scales of its row and its column an ordinary entry is about 1, and an entry that
is far larger than Gaussian noise allows is an outlier. An optimizer that normalises, as Adam does, hides such an entry
from whoever looks at its update.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..arrays import widen
from ..auto_threshold import gaussian_guard
from ..dtensor import whole
from ..layout import Layout
from ..scales import row_column_scales

_FALSE_ALARMS = 1e-3  # the share of matrices of Gaussian noise with an entry that is called an outlier


class GradientOutlier(NamedTuple):
    """The entry of one parameter's gradient that is the largest beside the scales of its row and column."""

    name: str
    place: tuple[int, ...]  # the entry's index in the parameter
    value: float
    scales: float  # |value| over the scale of its row and column; about 1 for an ordinary entry
    batch: Any = None  # what the caller said of the batch

    def __str__(self) -> str:
        batch = "" if self.batch is None else f"batch {self.batch}, "
        where = f"{batch}{self.name} (gradient) {describe_place(self.place)}"
        return f"{where}: {self.value:.3g}, {self.scales:.3g} x its scale"


def describe_place(place: tuple[int, ...]) -> str:
    """Return the index of an entry in words: row and column in a matrix, else all indices.

    >>> describe_place((3, 5)), describe_place((7,)), describe_place((1, 2, 3))
    ('row 3 col 5', 'index 7', 'index 1, 2, 3')
    """
    return f"row {place[0]} col {place[1]}" if len(place) == 2 else f"index {', '.join(map(str, place)) or 'none'}"


@torch.no_grad()
def gradient_outlier(name: str, g: Tensor, layout: Layout) -> GradientOutlier | None:
    """Return the largest entry of a gradient beside its scales, where it is an outlier; None where there is none.

    A gradient of fewer than two dimensions, or one whose matrices are single rows or columns, has no such scales. An
    entry that is not finite is an outlier of infinite size.
    """
    if g.is_sparse or g.ndim < 2 or not g.numel():
        return None
    m = widen(layout.matrices(whole(g)))
    if min(m.shape[-2:]) < 2:
        return None
    bad = ~torch.isfinite(m)
    if bool(bad.any()):
        at, scales = int(bad.reshape(-1).to(torch.uint8).argmax()), math.inf
    else:
        standardized = row_column_scales(m).standardize(m).abs()
        at = int(standardized.argmax())
        scales = float(standardized.reshape(-1)[at])
    rows, columns = m.shape[-2:]
    if scales <= gaussian_guard(rows, columns, _FALSE_ALARMS):
        return None
    place = layout.locate(_unravel(at, tuple(m.shape)), tuple(g.shape))
    return GradientOutlier(name, place, float(m.reshape(-1)[at]), scales)


def _unravel(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(at), shape))
