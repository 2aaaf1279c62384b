"""The kernels that find a quantile of |u| on a GPU, in Triton: the part of AdamW's fused step between its two walks.

The bit pattern of a magnitude is read in four digits, the highest of 7 bits and then 8 each. Per matrix, `locate` finds
the rank of the quantile; `digit` counts a digit over all tiles, and `choose` goes into the bin that holds the rank.
No result is sent to the host: the kernels decide from the counts whether the magnitudes that `walk` kept suffice.
"""

import triton
import triton.language as tl

from .triton_kernels import (
    BELOW,
    BEYOND,
    BINS,
    CONSTANT_COLUMNS,
    ESTIMATE_COLUMNS,
    FRACTION,
    HIGH,
    INFINITY,
    INSIDE,
    IS_HIT,
    LARGEST,
    LOW,
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
    M,
    V,
    address_of,
    at,
    direction,
    is_aligned,
    magnitude,
    own_tile,
)


@triton.jit
def locate(totals, search, estimates, q):
    """Find the rank of the quantile, as quantiles.order.position does; a bracket that misses becomes all numbers.

    `totals` has the number of entries of each matrix, on all processes where it is sharded.
    """
    matrix = tl.program_id(0)
    row = search + matrix * SEARCH_COLUMNS
    n, zeros = tl.load(totals + matrix), tl.load(row + ZEROS)
    place = tl.load(q) * tl.maximum(n - 1 - zeros, 0).to(tl.float64)
    floor = tl.floor(place)
    rank = tl.minimum(zeros + floor.to(tl.int64), n - 1)
    inside_rank, inside = rank - tl.load(row + BELOW), tl.load(row + INSIDE)
    # Both order statistics must lie inside, unless the rank is the last.
    hit = (inside_rank >= 0) & ((inside_rank + 1 < inside) | ((inside_rank < inside) & (rank == n - 1)))
    tl.store(row + IS_HIT, hit.to(tl.int64))
    tl.store(row + LOW, tl.where(hit, tl.load(row + LOW), 0))
    tl.store(row + HIGH, tl.where(hit, tl.load(row + HIGH), LARGEST))
    tl.store(row + RANK, tl.where(hit, inside_rank, rank))
    tl.store(row + PREFIX, tl.zeros((), tl.int64))
    tl.store(row + BEYOND, tl.full((), LARGEST, tl.int64))
    tl.store(estimates + matrix * ESTIMATE_COLUMNS + FRACTION, place - floor)


@triton.jit
def _tally(bits, ok, prefix, shift):
    """Count the digit at `shift` of the numbers whose higher digits are `prefix`."""
    return tl.histogram((bits >> shift) & (BINS - 1), BINS, mask=ok & (((bits >> shift) >> 8) == prefix))


@triton.jit
def _digit_anew(
    table, constants, search, matrix, start, left, prefix, shift, tally, least,
    LAST: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Count a digit of the magnitudes of a tile's u inside the bracket, with u made anew from the moments."""
    if ALIGNED:
        left = left // 4 * 4  # as it is: the compiler now sees that no vector is cut
    row = constants + matrix * CONSTANT_COLUMNS
    a, b = tl.load(row + A), tl.load(row + B)
    m_at, v_at = address_of(table, matrix, M, start), address_of(table, matrix, V, start)
    low = tl.load(search + matrix * SEARCH_COLUMNS + LOW).to(tl.int32)
    high = tl.load(search + matrix * SEARCH_COLUMNS + HIGH).to(tl.int32)
    for k in range(0, TILE, BLOCK):
        offsets = k + tl.arange(0, BLOCK)
        ok = offsets < left
        m = tl.load(at(m_at, offsets, ALIGNED), ok, 0.0)
        v = tl.load(at(v_at, offsets, ALIGNED), ok, 0.0)
        bits = magnitude(direction(m, v, a, b))
        ok = ok & (bits >= low) & (bits < high)
        tally += _tally(bits, ok, prefix, shift)
        if LAST:
            least = tl.minimum(least, tl.where(ok & ((bits >> 8) > prefix), bits, LARGEST))
    return tally, least


@triton.jit(do_not_specialize=["shift"])
def digit(
    table, constants, tiles, search, histogram, kept, kept_counts, shift,
    LAST: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """Add this tile's counts of the digit at `shift` to its matrix's histogram, of what the chosen bins hold so far.

    With LAST also the smallest magnitude above these bins: the next order statistic may be there.
    """
    matrix, start, left = own_tile(table, tiles, TILE)
    prefix = tl.load(search + matrix * SEARCH_COLUMNS + PREFIX).to(tl.int32)
    tally = tl.zeros((BINS,), tl.int32)
    least = tl.full((BLOCK,), LARGEST, tl.int32)
    size = tl.load(kept_counts + tl.program_id(0))
    if (tl.load(search + matrix * SEARCH_COLUMNS + IS_HIT) != 0) & (size <= ROOM):
        room = kept + tl.program_id(0).to(tl.int64) * ROOM
        for k in range(0, size, BLOCK):
            offsets = k + tl.arange(0, BLOCK)
            ok = offsets < size
            bits = tl.load(room + offsets, ok, 0)
            tally += _tally(bits, ok, prefix, shift)
            if LAST:
                least = tl.minimum(least, tl.where(ok & ((bits >> 8) > prefix), bits, LARGEST))
    elif is_aligned(table, matrix, left):
        tally, least = _digit_anew(
            table, constants, search, matrix, start, left, prefix, shift, tally, least, LAST, True, TILE, BLOCK
        )
    else:
        tally, least = _digit_anew(
            table, constants, search, matrix, start, left, prefix, shift, tally, least, LAST, False, TILE, BLOCK
        )
    tl.atomic_add(histogram + matrix * BINS + tl.arange(0, BINS), tally.to(tl.int64), mask=tally > 0, sem="relaxed")
    if LAST:
        tl.atomic_min(search + matrix * SEARCH_COLUMNS + BEYOND, tl.min(least, 0).to(tl.int64), sem="relaxed")


@triton.jit
def choose(totals, search, histogram, estimates, q, multiples, thresholds, LAST: tl.constexpr):
    """Go into the bin that holds the rank, and leave the histogram empty for the next digit.

    With LAST: write the quantile, `multiples` times it to `thresholds`, and the bracket of the next step.
    """
    matrix = tl.program_id(0)
    row = search + matrix * SEARCH_COLUMNS
    bins = tl.arange(0, BINS)
    counts = tl.load(histogram + matrix * BINS + bins)
    tl.store(histogram + matrix * BINS + bins, tl.zeros((BINS,), tl.int64))
    rank, prefix = tl.load(row + RANK), tl.load(row + PREFIX).to(tl.int32)
    mine = tl.sum((tl.cumsum(counts, 0) <= rank).to(tl.int32), 0)
    rank -= tl.sum(tl.where(bins < mine, counts, 0), 0)
    found = (prefix << 8) | mine
    tl.store(row + RANK, rank)
    tl.store(row + PREFIX, found.to(tl.int64))
    if LAST:
        n = tl.load(totals + matrix)
        size = tl.sum(tl.where(bins == mine, counts, 0), 0)
        near = tl.min(tl.where((bins > mine) & (counts > 0), bins, BINS), 0)
        next_up = tl.where(near < BINS, (prefix << 8) | near, tl.load(row + BEYOND).to(tl.int32))
        next_up = tl.where((rank + 1 < size) | (next_up == LARGEST), found, next_up)
        value = _between(found, next_up, tl.load(estimates + matrix * ESTIMATE_COLUMNS + FRACTION))
        value = tl.where(tl.load(row + TOP) > INFINITY, float("nan"), value)
        value = tl.where(n > 0, value, 0.0)
        tl.store(thresholds + matrix, (tl.load(multiples + matrix) * value.to(tl.float64)).to(tl.float32))
        _follow(row, estimates + matrix * ESTIMATE_COLUMNS, value, tl.load(q) >= OPEN)


@triton.jit
def _between(found, next_up, t):
    """Interpolate between two order statistics given as bit patterns, as quantiles.order.interpolate does."""
    lower = found.to(tl.float32, bitcast=True).to(tl.float64)
    upper = next_up.to(tl.float32, bitcast=True).to(tl.float64)
    step = upper - lower
    between = tl.where(t < 0.5, lower + step * t, upper - step * (1 - t))
    between = tl.where(next_up == INFINITY, upper, between)
    return tl.where((found == next_up) | (t == 0), lower, between).to(tl.float32)


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
