"""Entries that are not finite: an operator's limit must not hide an overflow from the user."""

import math

import torch
from torch import Tensor

from ..arrays import on_host


def propagated(clipped: Tensor, x: Tensor) -> Tensor:
    """Return `clipped` with NaN wherever `x` is not finite."""
    return clipped if seen_finite(x) else torch.add(clipped, x, alpha=0)


def seen_finite(x: Tensor) -> bool:
    """Tell whether `x` lies on the host and all its entries are finite, in one pass instead of three.

    False does not mean that an entry is not finite: on a device nobody looks, since the host would wait.
    """
    return on_host(x) and math.isfinite(x.sum().item())
