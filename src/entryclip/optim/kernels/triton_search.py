"""The kernels that find a quantile of |u| on a GPU, in Triton: the part of a fused step between its two walks.

The bit pattern of a magnitude is read in four digits, the highest of 7 bits and then 8 each. Per matrix, `locate` finds
the rank of the quantile; `digit` counts a digit over all tiles, and `choose` goes into the bin that holds the rank.
No result is sent to the host: the kernels decide from the counts whether the magnitudes that `walk` kept suffice.
"""

import triton
import triton.language as tl

from ...quantiles.triton_digits import (
    BINS,
    FP32,
    INFINITY,
    LARGEST,
    at,
    enter_bin,
    interpolate,
    least_beyond,
    magnitude,
    next_statistic,
    number,
    position,
    tally,
)
from .triton_kernels import (
    ADAM,
    BELOW,
    BEYOND,
    CONSTANT_COLUMNS,
    ESTIMATE_COLUMNS,
    FRACTION,
    GRADIENT,
    HIGH,
    INSIDE,
    IS_HIT,
    LOW,
    MOMENTUM,
    NARROWEST,
    OPEN,
    PREFIX,
    QUANTILE,
    RANK,
    SEARCH_COLUMNS,
    TOP,
    WIDEST,
    WIDTH,
    ZEROS,
    A,
    B,
    G,
    M,
    V,
    address_of,
    direction,
    is_aligned,
    own_tile,
)
from .triton_momentum import OF_GRADIENT, OF_MOMENTUM, blend


@triton.jit
def locate(totals, search, estimates, q):
    """Find the rank of the quantile, as quantiles.order.position does; a bracket that misses becomes all numbers.

    `totals` has the number of entries of each matrix, on all processes where it is sharded.
    """
    matrix = tl.program_id(0)
    row = search + matrix * SEARCH_COLUMNS
    n, zeros = tl.load(totals + matrix), tl.load(row + ZEROS)
    rank, fraction = position(n, zeros, tl.load(q))
    inside_rank, inside = rank - tl.load(row + BELOW), tl.load(row + INSIDE)
    # Both order statistics must lie inside, unless the rank is the last.
    hit = (inside_rank >= 0) & ((inside_rank + 1 < inside) | ((inside_rank < inside) & (rank == n - 1)))
    tl.store(row + IS_HIT, hit.to(tl.int64))
    tl.store(row + LOW, tl.where(hit, tl.load(row + LOW), 0))
    tl.store(row + HIGH, tl.where(hit, tl.load(row + HIGH), LARGEST))
    tl.store(row + RANK, tl.where(hit, inside_rank, rank))
    tl.store(row + PREFIX, tl.zeros((), tl.int64))
    tl.store(row + BEYOND, tl.full((), LARGEST, tl.int64))
    tl.store(estimates + matrix * ESTIMATE_COLUMNS + FRACTION, fraction)


@triton.jit
def _digit_anew(
    table, constants, search, matrix, start, left, prefix, shift, counts, least,
    KIND: tl.constexpr, LAST: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Count a digit of the magnitudes of a tile's u inside the bracket, with u made anew from the buffers."""
    if ALIGNED:
        left = left // 4 * 4  # as it is: the compiler now sees that no vector is cut
    row = constants + matrix * CONSTANT_COLUMNS
    m_at = address_of(table, matrix, M, start)
    if KIND == ADAM:
        a, b, other = tl.load(row + A), tl.load(row + B), address_of(table, matrix, V, start)
    else:
        a, b = tl.load(row + OF_MOMENTUM), tl.load(row + OF_GRADIENT)
        other = address_of(table, matrix, G, start)
    low = tl.load(search + matrix * SEARCH_COLUMNS + LOW).to(tl.int32)
    high = tl.load(search + matrix * SEARCH_COLUMNS + HIGH).to(tl.int32)
    for k in range(0, TILE, BLOCK):
        offsets = k + tl.arange(0, BLOCK)
        ok = offsets < left
        x = tl.zeros((BLOCK,), tl.float32)  # the gradient, or the second moment
        m = x
        if KIND != GRADIENT:
            m = tl.load(at(m_at, offsets, ALIGNED), ok, 0.0)
        if KIND != MOMENTUM:
            x = tl.load(at(other, offsets, ALIGNED), ok, 0.0)
        if KIND == ADAM:
            bits = magnitude(direction(m, x, a, b))
        else:
            bits = magnitude(blend(m, x, a, b, KIND))
        ok = ok & (bits >= low) & (bits < high)
        counts += tally(bits, ok, prefix, shift)
        if LAST:
            least = least_beyond(least, bits, ok, prefix)
    return counts, least


@triton.jit(do_not_specialize=["shift"])
def digit(
    table, constants, tiles, search, histogram, kept, kept_counts, shift,
    KIND: tl.constexpr, LAST: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """Add this tile's counts of the digit at `shift` to its matrix's histogram, of what the chosen bins hold so far.

    With LAST also the smallest magnitude above these bins: the next order statistic may be there.
    """
    matrix, start, left = own_tile(table, tiles, TILE)
    prefix = tl.load(search + matrix * SEARCH_COLUMNS + PREFIX).to(tl.int32)
    counts = tl.zeros((BINS,), tl.int32)
    least = tl.full((BLOCK,), LARGEST, tl.int32)
    size = tl.load(kept_counts + tl.program_id(0))
    if (tl.load(search + matrix * SEARCH_COLUMNS + IS_HIT) != 0) & (size <= ROOM):
        room = kept + tl.program_id(0).to(tl.int64) * ROOM
        for k in range(0, size, BLOCK):
            offsets = k + tl.arange(0, BLOCK)
            ok = offsets < size
            bits = tl.load(room + offsets, ok, 0)
            counts += tally(bits, ok, prefix, shift)
            if LAST:
                least = least_beyond(least, bits, ok, prefix)
    elif is_aligned(table, matrix, left):
        counts, least = _digit_anew(
            table, constants, search, matrix, start, left, prefix, shift, counts, least, KIND, LAST, True, TILE, BLOCK
        )
    else:
        counts, least = _digit_anew(
            table, constants, search, matrix, start, left, prefix, shift, counts, least, KIND, LAST, False, TILE, BLOCK
        )
    tl.atomic_add(histogram + matrix * BINS + tl.arange(0, BINS), counts.to(tl.int64), mask=counts > 0, sem="relaxed")
    if LAST:
        tl.atomic_min(search + matrix * SEARCH_COLUMNS + BEYOND, tl.min(least, 0).to(tl.int64), sem="relaxed")


@triton.jit
def choose(totals, search, histogram, estimates, q, multiples, thresholds, LAST: tl.constexpr):
    """Go into the bin that holds the rank, and leave the histogram empty for the next digit.

    With LAST: write the quantile, `multiples` times it to `thresholds`, and the bracket of the next step.
    """
    matrix = tl.program_id(0)
    row = search + matrix * SEARCH_COLUMNS
    prefix = tl.load(row + PREFIX).to(tl.int32)
    counts, mine, rank = enter_bin(histogram + matrix * BINS, tl.load(row + RANK))
    found = (prefix << 8) | mine
    tl.store(row + RANK, rank)
    tl.store(row + PREFIX, found.to(tl.int64))
    if LAST:
        n = tl.load(totals + matrix)
        next_up = next_statistic(counts, mine, rank, prefix, tl.load(row + BEYOND).to(tl.int32))
        fraction = tl.load(estimates + matrix * ESTIMATE_COLUMNS + FRACTION)
        value = interpolate(number(found, FP32), number(next_up, FP32), fraction)
        value = tl.where(tl.load(row + TOP) > INFINITY, float("nan"), value)
        value = tl.where(n > 0, value, 0.0)
        tl.store(thresholds + matrix, (tl.load(multiples + matrix) * value.to(tl.float64)).to(tl.float32))
        _follow(row, estimates + matrix * ESTIMATE_COLUMNS, value, tl.load(q) >= OPEN)


@triton.jit
def _follow(row, estimate, value, is_open):
    """Write the quantile, and a bracket four times as wide around it as it moved of late; clear the counts."""
    moved = tl.abs(value.to(tl.float64) / tl.load(estimate + QUANTILE) - 1)
    moved = tl.where(moved < WIDEST, moved, WIDEST)  # also where it is NaN
    width = tl.maximum(4 * moved, 0.9 * tl.load(estimate + WIDTH))
    width = tl.minimum(tl.maximum(width, NARROWEST), WIDEST)
    usable = (value > 0) & (value < float("inf"))
    low, high = (value * (1 - width)).to(tl.float32), (value * (1 + width)).to(tl.float32)
    tl.store(estimate + QUANTILE, value.to(tl.float64))
    tl.store(estimate + WIDTH, width)
    tl.store(row + LOW, tl.where(usable, magnitude(low), LARGEST).to(tl.int64))
    tl.store(row + HIGH, tl.where(usable & (not is_open), magnitude(high), LARGEST).to(tl.int64))
    for column in tl.static_range(4):  # ZEROS, BELOW, INSIDE, TOP
        tl.store(row + ZEROS + column, tl.zeros((), tl.int64))
