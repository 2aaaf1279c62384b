"""Loads and stores of entries that are fp32, bf16 or fp16 from one matrix to the next, in Triton.

A launch covers the matrices of a whole group, so that the precision is a number in a table and not a type. bf16 is
converted by its bits in both directions: Triton's interpreter, in which the kernels are checked, gets it wrong.
"""

import triton
import triton.language as tl

from ...quantiles.triton_digits import BF16, FP16, FP32, at


@triton.jit
def width_of(precision):
    """Return the number of bytes of an entry."""
    return tl.where(precision == FP32, 4, 2)


@triton.jit
def load_widened(address, precision, offsets, ok, ALIGNED: tl.constexpr):
    """Load entries as fp32 from `address`, a 64-bit integer; exact in every precision."""
    if precision == FP32:
        x = tl.load(at(address.to(tl.pointer_type(tl.float32)), offsets, ALIGNED), ok, 0.0)
    elif precision == BF16:
        bits = tl.load(at(address.to(tl.pointer_type(tl.int16)), offsets, ALIGNED), ok, 0)
        x = (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)  # bf16 is the upper half of fp32
    else:
        x = tl.load(at(address.to(tl.pointer_type(tl.float16)), offsets, ALIGNED), ok, 0.0).to(tl.float32)
    return x


@triton.jit
def store_rounded(address, precision, offsets, x, ok, ALIGNED: tl.constexpr):
    """Store fp32 numbers in bf16 or fp16, rounded to nearest even, at `address`; in FP32 store nothing."""
    if precision == BF16:
        bits = x.to(tl.int32, bitcast=True)
        upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # may carry into the exponent, and from the largest to inf
        upper = tl.where(x == x, upper, 0x7FC0)  # NaN, of which the carry could make anything
        tl.store(at(address.to(tl.pointer_type(tl.int16)), offsets, ALIGNED), upper.to(tl.int16), ok)
    elif precision == FP16:
        tl.store(at(address.to(tl.pointer_type(tl.float16)), offsets, ALIGNED), x.to(tl.float16), ok)
