"""Radix selection of magnitudes in Triton: what all kernels that do it share, and the two that do it for rows.

The bit pattern of a magnitude is read eight bits at a time, the highest digit first. `count_digit` counts a digit of
all entries whose higher digits are those found so far, and `choose_bin` goes into the bin that holds the rank: see
gpu.py, which launches them. The fused optimizer steps have kernels of their own around the same functions.
"""

import triton
import triton.language as tl

LARGEST = tl.constexpr(0x7FFFFFFF)
INFINITY = tl.constexpr(0x7F800000)  # the bit pattern of inf in fp32; larger ones are NaN
BINS = tl.constexpr(256)
FP32, BF16, FP16 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # how the entries of an array are stored
# Columns of `rows`, 64-bit integers: counts of the first pass, then the rank in and the digits of the chosen bins.
ZEROS, TOP, RANK, PREFIX, BEYOND, ROW_COLUMNS = (tl.constexpr(i) for i in range(6))


@triton.jit
def at(address, offsets, ALIGNED: tl.constexpr):
    """Return `address + offsets`. The compiler sees the alignment only where the sum is made, not on an argument.

    Of offsets in two dimensions each row is aligned.
    """
    if ALIGNED and len(offsets.shape) == 2:
        return tl.multiple_of(address + offsets, (1, 16))
    elif ALIGNED:
        return tl.multiple_of(address + offsets, (16,))
    else:
        return address + offsets


@triton.jit
def magnitude(u):
    """Return the bit pattern of |u|, which orders as |u| does, NaN above inf."""
    return u.to(tl.int32, bitcast=True) & LARGEST


@triton.jit
def number(bits, PRECISION: tl.constexpr):
    """Return the fp32 number whose bit pattern in this precision is `bits`, 32-bit integers."""
    if PRECISION == FP32:
        return bits.to(tl.float32, bitcast=True)
    elif PRECISION == BF16:
        return (bits << 16).to(tl.float32, bitcast=True)  # bf16 is the upper half of fp32
    else:
        return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def position(n, zeros, q):
    """Return the rank of the lower order statistic and the fraction beyond it, as order.position does."""
    place = q * tl.maximum(n - 1 - zeros, 0).to(tl.float64)
    floor = tl.floor(place)
    return tl.minimum(zeros + floor.to(tl.int64), n - 1), place - floor


@triton.jit
def tally(bits, ok, prefix, shift):
    """Count the digit at `shift` of the numbers whose higher digits are `prefix`."""
    return tl.histogram((bits >> shift) & (BINS - 1), BINS, mask=ok & (((bits >> shift) >> 8) == prefix))


@triton.jit
def least_beyond(least, bits, ok, prefix):
    """Lower `least` to the smallest numbers whose higher digits lie above `prefix`: the next rank may be there."""
    return tl.minimum(least, tl.where(ok & ((bits >> 8) > prefix), bits, LARGEST))


@triton.jit
def enter_bin(histogram, rank):
    """Return the counts, the bin that holds the rank, and the rank within it; leaves the histogram empty."""
    bins = tl.arange(0, BINS)
    counts = tl.load(histogram + bins)
    tl.store(histogram + bins, tl.zeros((BINS,), tl.int64))
    mine = tl.sum((tl.cumsum(counts, 0) <= rank).to(tl.int32), 0)
    return counts, mine, rank - tl.sum(tl.where(bins < mine, counts, 0), 0)


@triton.jit
def next_statistic(counts, mine, rank, prefix, beyond):
    """Return the bit pattern of the rank after the one found in bin `mine` of the last digit; itself for the last."""
    bins = tl.arange(0, BINS)
    found = (prefix << 8) | mine
    size = tl.sum(tl.where(bins == mine, counts, 0), 0)
    near = tl.min(tl.where((bins > mine) & (counts > 0), bins, BINS), 0)
    next_up = tl.where(near < BINS, (prefix << 8) | near, beyond)
    return tl.where((rank + 1 < size) | (next_up == LARGEST), found, next_up)


@triton.jit
def interpolate(low, high, t):
    """Return the fp32 value between two order statistics, given in fp32, as order.interpolate does."""
    lower, upper = low.to(tl.float64), high.to(tl.float64)
    step = upper - lower
    between = tl.where(t < 0.5, lower + step * t, upper - step * (1 - t))
    between = tl.where(upper == float("inf"), upper, between)
    return tl.where((lower == upper) | (t == 0), lower, between).to(tl.float32)


@triton.jit(do_not_specialize=["n", "stride", "parts", "shift"])
def count_digit(
    x, rows, histogram, n, stride, parts, shift,
    PRECISION: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, ALIGNED: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the counts of the digit at `shift`, over a tile of the bit patterns `x`, to its row's histogram.

    With FIRST also the zeros, and the largest magnitude; with LAST the smallest one above the bins chosen so far.
    """
    row = tl.program_id(0) // parts
    start = (tl.program_id(0) % parts).to(tl.int64) * TILE
    left = tl.minimum(n - start, TILE).to(tl.int32)
    if ALIGNED:
        left = left // 8 * 8  # as it is: the compiler now sees that no vector is cut
    entries, found = x + row.to(tl.int64) * stride + start, rows + row * ROW_COLUMNS
    prefix = tl.load(found + PREFIX).to(tl.int32)
    counts = tl.zeros((BINS,), tl.int32)
    zeros, top = tl.zeros((BLOCK,), tl.int32), tl.zeros((BLOCK,), tl.int32)
    least = tl.full((BLOCK,), LARGEST, tl.int32)
    for k in range(0, left, BLOCK):
        offsets = k + tl.arange(0, BLOCK)
        ok = offsets < left
        bits = tl.load(at(entries, offsets, ALIGNED), ok, 0).to(tl.int32)
        bits = bits & (LARGEST if PRECISION == FP32 else 0x7FFF)
        counts += tally(bits, ok, prefix, shift)
        if FIRST:
            zeros += tl.where(ok & (bits == 0), 1, 0)
            top = tl.maximum(top, tl.where(ok, bits, 0))
        if LAST:
            least = least_beyond(least, bits, ok, prefix)
    tl.atomic_add(histogram + row * BINS + tl.arange(0, BINS), counts.to(tl.int64), mask=counts > 0, sem="relaxed")
    if FIRST:
        tl.atomic_add(found + ZEROS, tl.sum(zeros, 0).to(tl.int64), sem="relaxed")
        tl.atomic_max(found + TOP, tl.max(top, 0).to(tl.int64), sem="relaxed")
    if LAST:
        tl.atomic_min(found + BEYOND, tl.min(least, 0).to(tl.int64), sem="relaxed")


@triton.jit(do_not_specialize=["n", "level"])
def choose_bin(
    rows, histogram, values, n, level,
    PRECISION: tl.constexpr, NONZERO: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Go into the bin of a row that holds the rank; with LAST write the quantile to `values`.

    Triton would round a Python float to fp32, so that `level` is q by its bit pattern in fp64.
    """
    row = rows + tl.program_id(0) * ROW_COLUMNS
    zeros = tl.load(row + ZEROS)
    if not NONZERO:
        zeros = zeros * 0
    rank, fraction = position(n, zeros, level.to(tl.int64).to(tl.float64, bitcast=True))
    prefix = tl.load(row + PREFIX).to(tl.int32)
    if FIRST:
        tl.store(row + BEYOND, tl.full((), LARGEST, tl.int64))
    else:
        rank = tl.load(row + RANK)
    counts, mine, rank = enter_bin(histogram + tl.program_id(0) * BINS, rank)
    tl.store(row + RANK, rank)
    tl.store(row + PREFIX, ((prefix << 8) | mine).to(tl.int64))
    if LAST:
        next_up = next_statistic(counts, mine, rank, prefix, tl.load(row + BEYOND).to(tl.int32))
        value = interpolate(number((prefix << 8) | mine, PRECISION), number(next_up, PRECISION), fraction)
        top = number(tl.load(row + TOP).to(tl.int32), PRECISION)
        tl.store(values + tl.program_id(0), tl.where(top == top, value, float("nan")))
