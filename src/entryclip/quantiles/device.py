"""Quantiles of |x| of a torch tensor that the host cannot read: on a device, under vmap, or while traced.

on a GPU with Triton   digit by digit, by the kernels of gpu.py
else, for q >= 0.9     the largest entries by `torch.topk`, of which the two order statistics are picked by rank
else                   digit by digit, in digits.py

None waits for the host or branches on the data. The last two can be captured by torch.compile.
"""

import functools
import warnings
from types import ModuleType

import torch
from torch import Tensor

from ..arrays import dtype_name
from .digits import Rows, joined, select_by_digits
from .order import OrderStatistics, interpolate, magnitude_bits, raw_bits

_FEW = 0.9  # from this q on the entries above the quantile are few enough to sort
_SHORT = 1 << 12  # entries of a row below which many rows are left to plain torch: a histogram has 2 kB a row
_MANY = 1 << 10  # so many rows are many


def quantile_on_device(blocks: list[Tensor], q: float, nonzero: bool, *, is_magnitude: bool = False) -> Tensor:
    """Return the q-quantile of each row of |x|, as (rows,) in fp32 or fp64; interpolation is in fp64.

    The rows are in `blocks` of (rows, n) each. Blocks of different n are of use with `nonzero` only.

    nonzero         rank only the entries that are not 0
    is_magnitude    no entry has its sign bit set
    """
    kernels = [_kernels_for(x) for x in blocks]
    if None not in kernels:
        found = [each.quantile_of_rows(x, q, nonzero) for each, x in zip(kernels, blocks, strict=True) if each]
        return joined(found)
    bits = [raw_bits(x) if is_magnitude else magnitude_bits(x) for x in blocks]
    return interpolate(select_on_device(bits, q, nonzero), dtype_name(blocks[0]))


def _kernels_for(x: Tensor) -> ModuleType | None:
    """Return gpu.py if its kernels can read `x`, (rows, n): a plain tensor on a GPU, and no compiler tracing."""
    if not x.is_cuda or torch.compiler.is_compiling() or type(x) is not Tensor or x.dtype is torch.float64:
        return None
    if torch._C._functorch.is_functorch_wrapped_tensor(x) or torch._C._len_torch_dispatch_stack():
        return None
    return _load_kernels() if x.shape[1] >= _SHORT or len(x) < _MANY else None


@functools.cache
def _load_kernels() -> ModuleType | None:
    """Import gpu.py and try it; None where Triton is missing, or cannot compile here, of which it warns."""
    try:
        from . import gpu
    except ImportError:
        return None
    try:
        gpu.quantile_of_rows(torch.zeros(1, 1, device="cuda"), 0.5, True)
    except Exception as error:  # whatever a driver or a compiler that does not fit raises
        warnings.warn(f"Triton fails here, so that quantiles take more launches ({error})", stacklevel=5)
        return None
    return gpu


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
