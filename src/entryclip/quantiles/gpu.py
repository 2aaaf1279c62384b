"""Exact quantiles of |x| on a GPU by the Triton kernels of triton_digits.py, one set of launches for all rows.

An fp32 takes four passes over the entries, bf16 and fp16 two. The host never waits for the device.
"""

import inspect
import struct
from typing import Any

import torch
import triton
from torch import Tensor

from . import triton_digits as kernels
from .order import raw_bits

if "mask" not in inspect.signature(triton.language.histogram).parameters:
    raise ImportError(f"Triton {triton.__version__} is too old, 3.4 or newer is needed: its histogram takes no mask")

PRECISIONS = {torch.float32: kernels.FP32, torch.bfloat16: kernels.BF16, torch.float16: kernels.FP16}
TILE = 8192  # entries that one program works on
WARPS = 4
_THREADS = WARPS * (64 if torch.version.hip else 32)


def quantile_of_rows(x: Tensor, q: float, nonzero: bool, *, tile: int = TILE, threads: int = _THREADS) -> Tensor:
    """Return the q-quantile of each row of |x|, (rows, n) in fp32, bf16 or fp16, as (rows,) in fp32.

    tile, threads    entries of one program, a multiple of 8; threads of one, each of which loads 16 bytes at a time
    """
    if x.stride(1) != 1 and x.shape[1] > 1:
        x = x.contiguous()
    raw, (count, n) = raw_bits(x), x.shape
    parts = -(-n // tile)
    new: Any = {"device": x.device}
    histogram = torch.zeros(count, kernels.BINS.value + kernels.ROW_COLUMNS.value, dtype=torch.int64, **new).view(-1)
    found = histogram[count * kernels.BINS.value :]  # both in one array: a single launch fills them with zeros
    values = torch.empty(count, dtype=torch.float32, **new)
    shape = {"TILE": tile, "BLOCK": min(threads * 16 // x.element_size(), tile), "ALIGNED": is_aligned(raw)}
    level = struct.unpack("q", struct.pack("d", q))[0]
    shifts = range(8 * x.element_size() - 8, -1, -8)
    for shift in shifts:
        which = {"PRECISION": PRECISIONS[x.dtype], "FIRST": shift == shifts[0], "LAST": shift == 0}
        arguments = (raw, found, histogram, n, raw.stride(0), parts, shift)
        launch(kernels.count_digit, count * parts, *arguments, **which, **shape)
        launch(kernels.choose_bin, count, found, histogram, values, n, level, NONZERO=nonzero, **which)
    return values


def is_aligned(raw: Tensor) -> bool:
    """Tell whether loads of 16 bytes fit every row: none begins beside a multiple of that, or ends within one."""
    sides = [raw.data_ptr(), raw.shape[1] * raw.element_size()]
    if len(raw) > 1:
        sides.append(raw.stride(0) * raw.element_size())
    return all(side % 16 == 0 for side in sides) and raw.shape[1] % 8 == 0


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Launch a kernel on the device of its first argument."""
    with torch.cuda.device_of(arguments[0]):  # type: ignore[no-untyped-call]
        kernel[(programs,)](*arguments, **constants, num_warps=WARPS)
