"""What a clip by the scales of rows and columns works out per matrix, between its passes over the entries, in Triton.

`scale` and `decide` are one program for each matrix. They follow log_scales.scales_of_sums, and Auto.follow and
Auto.decide, which are the specification: the host is not asked, and sums are taken in one order.
"""

import triton
import triton.language as tl

from ... import auto_threshold, log_scales
from .triton_scaled import (
    ABOVE,
    BIAS,
    BINS,
    CLIPS,
    COLUMNS,
    COUNT,
    DECISION_COLUMNS,
    FACTOR,
    FOUND_COLUMNS,
    IS_TRANSPOSED,
    LEVEL,
    LINES,
    LOOKS,
    ONE,
    OUTGROWN,
    PARAMETER,
    ROWS,
    SHAPE_COLUMNS,
    THRESHOLD,
)

CANDIDATES = tl.constexpr(128)  # columns of the tables by threshold: so many candidates at most
LITTLE = tl.constexpr(1e-30)  # what efficiency.py divides by at least
GAUSSIAN_MEAN = tl.constexpr(log_scales.GAUSSIAN_MEAN)
GAUSSIAN_VARIANCE = tl.constexpr(log_scales.GAUSSIAN_VARIANCE)
SMALLEST, LARGEST = tl.constexpr(log_scales.SMALLEST), tl.constexpr(log_scales.LARGEST)
TIE, ENOUGH = tl.constexpr(1 - auto_threshold.TIE), tl.constexpr(auto_threshold.ENOUGH)
NARROW, SURE = tl.constexpr(log_scales.NARROW), tl.constexpr(log_scales.SURE)
FEW, NEAR = tl.constexpr(auto_threshold.FEW), tl.constexpr(log_scales.NEAR)
UNEVEN = tl.constexpr(log_scales.UNEVEN)


@triton.jit
def _log_variance(seen, log_sizes):
    """Return the variance of log2 |z| of a sketch, that of Gaussian entries where it has few."""
    bins = tl.arange(0, BINS)
    counts, level = tl.load(seen + bins), tl.load(log_sizes + bins)
    total = tl.sum(counts, 0)
    share = tl.div_rn(counts, tl.maximum(total, LITTLE))
    off = level - tl.sum(share * level, 0)
    return tl.where(total >= FEW, tl.sum(share * (off * off), 0), GAUSSIAN_VARIANCE)


@triton.jit
def _offsets(sums, zeros, lines, length, across, mean):
    """Return how far the mean logarithms of some lines lie from the common one, and how many entries count in each."""
    ok = lines < length
    counts = tl.where(ok, across - tl.load(zeros + lines, ok, 0), 0).to(tl.float64)
    each = tl.load(sums + lines, ok, 0).to(tl.float64) / tl.maximum(counts, 1.0)
    return tl.where(counts > 1, (each - mean) / ONE, 0.0), counts


@triton.jit
def _write_scales(
    sums, zeros, scales, length, across, mean, level, variance, has_level, BLOCK: tl.constexpr
):  # fmt: skip
    """Write the scales of rows, or of columns, shrunk by what of their scatter is chance; leave the sums empty.

    Return how many octaves the largest lies above the mean.

    across      how many entries each of them has
    level       the mean of log2 |x|; `mean` is that of the bit patterns under the ceiling
    has_level   whether their scales contain the matrix's common one
    """
    scatter, chance = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    number = tl.zeros((BLOCK,), tl.int32)
    for k in range(0, length, BLOCK):
        offset, counts = _offsets(sums, zeros, k + tl.arange(0, BLOCK), length, across, mean)
        scatter += offset * offset
        chance += tl.where(counts > 1, 1 / tl.maximum(counts, 1.0), 0.0)
        number += tl.where(counts > 1, 1, 0)
    used = tl.sum(number, 0).to(tl.float64)
    spread = tl.sum(scatter, 0) / tl.maximum(used - 1, 1.0)
    by_chance = variance.to(tl.float64) * tl.sum(chance, 0) / tl.maximum(used, 1.0)
    share = tl.where(spread > 0, 1 - by_chance / tl.where(spread > 0, spread, 1.0), 0.0)
    largest = tl.full((BLOCK,), float("-inf"), tl.float64)
    for k in range(0, length, BLOCK):
        lines = k + tl.arange(0, BLOCK)
        offset, counts = _offsets(sums, zeros, lines, length, across, mean)
        square = offset * offset
        own = variance.to(tl.float64) * tl.where(counts > 1, 1 / tl.maximum(counts, 1.0), 0.0)
        beyond = 1 - SURE * own / tl.where(square > 0, square, 1.0)
        power = tl.maximum(tl.maximum(share, beyond), 0.0) * offset
        largest = tl.maximum(largest, tl.where(lines < length, power, float("-inf")))
        power = tl.where(has_level, tl.minimum(tl.maximum(level - GAUSSIAN_MEAN + power, SMALLEST), LARGEST), power)
        tl.store(scales + lines, tl.exp2(power).to(tl.float32), lines < length)
        tl.store(sums + lines, tl.zeros((BLOCK,), tl.int64), lines < length)
        tl.store(zeros + lines, tl.zeros((BLOCK,), tl.int32), lines < length)
    return tl.max(largest, 0)


@triton.jit
def scale(
    shapes, sums, zeros, excess, scales, sketches, levels, looks, log_sizes, found, BLOCK: tl.constexpr
):  # fmt: skip
    """Make the scales of a matrix's rows and columns, and write down how many entries count and how large they are."""
    matrix = tl.program_id(0)
    shape = shapes + matrix * SHAPE_COLUMNS
    rows, columns = tl.load(shape + ROWS).to(tl.int32), tl.load(shape + COLUMNS).to(tl.int32)
    of_rows = tl.load(shape + LINES)
    of_columns = of_rows + rows
    variance = _log_variance(sketches + matrix * BINS, log_sizes)
    total, missing = tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.int64)
    for k in range(0, rows, BLOCK):
        lines = k + tl.arange(0, BLOCK)
        total += tl.load(sums + of_rows + lines, lines < rows, 0)
        missing += tl.load(zeros + of_rows + lines, lines < rows, 0)
    count = (rows.to(tl.int64) * columns - tl.sum(missing, 0)).to(tl.float64)
    mean = tl.sum(total, 0).to(tl.float64) / tl.maximum(count, 1.0)
    level, ceiling = mean / ONE - BIAS, tl.load(levels + matrix) + ABOVE
    outgrown = (2 * count >= rows.to(tl.float64) * columns) & (level > ceiling - NEAR)
    cut_off = tl.load(excess + matrix).to(tl.float64) / tl.maximum(count, 1.0)
    level = tl.where(outgrown, (mean + cut_off) / ONE - BIAS, level)
    result = found + matrix * FOUND_COLUMNS
    tl.store(result + COUNT, count.to(tl.float32))
    tl.store(result + OUTGROWN, tl.where(outgrown, 1.0, 0.0))
    tl.store(excess + matrix, tl.zeros((), tl.int64))
    tl.store(result + LOOKS, tl.load(looks + tl.load(shape + PARAMETER)))
    flips = tl.load(shape + IS_TRANSPOSED) != 0
    largest = _write_scales(
        sums + of_rows, zeros + of_rows, scales + of_rows, rows, columns,
        mean, level, variance, not flips, BLOCK,
    )  # fmt: skip
    other = _write_scales(
        sums + of_columns, zeros + of_columns, scales + of_columns, columns, rows,
        mean, level, variance, flips, BLOCK,
    )  # fmt: skip
    side = tl.minimum(rows, columns)
    rise = tl.where((side >= NARROW) | (side == 1), tl.maximum(tl.maximum(largest, other) - UNEVEN, 0.0), 0.0)
    tl.store(result + LEVEL, (level + rise).to(tl.float32))


@triton.jit
def _best_threshold(seen, new, is_first, guard, slopes, powers, sizes, thresholds, candidates, CHUNK: tl.constexpr):
    """Return the gain of the best threshold, the largest threshold that is nearly as good, and the slope there.

    seen, new    the sketch to decide by, that of this step where `is_first`
    """
    bins = tl.arange(0, BINS)
    counts = tl.where(is_first, tl.load(new + bins).to(tl.float32), tl.load(seen + bins))
    total = tl.sum(counts, 0)
    share, size = tl.div_rn(counts, tl.maximum(total, LITTLE)), tl.load(sizes + bins)
    guard_slope = tl.maximum(tl.sum(tl.where(size < guard, share, 0.0), 0), LITTLE)
    bounded = tl.minimum(size, guard)
    guard_power = tl.sum(share * (bounded * bounded), 0)
    slope, power = tl.zeros((CHUNK, CANDIDATES), tl.float32), tl.zeros((CHUNK, CANDIDATES), tl.float32)
    place = tl.arange(0, CANDIDATES)
    for k in range(0, BINS, CHUNK):
        some = k + tl.arange(0, CHUNK)
        part = tl.where(is_first, tl.load(new + some).to(tl.float32), tl.load(seen + some))
        part = tl.div_rn(part, tl.maximum(total, LITTLE))[:, None]
        cells = some[:, None] * CANDIDATES + place[None, :]
        slope += part * tl.load(slopes + cells)
        power += part * tl.load(powers + cells)
    slope, power = tl.sum(slope, 0), tl.maximum(tl.sum(power, 0), LITTLE)
    passed = tl.maximum(slope, 0.0)
    gain = tl.div_rn(tl.div_rn(passed * passed * guard_power, power), guard_slope * guard_slope)
    gain = tl.where(place < candidates, gain, -1.0)
    best = tl.max(gain, 0)
    chosen = tl.max(tl.where(gain >= best * TIE, place, 0), 0)
    is_chosen = place == chosen
    threshold = tl.sum(tl.where(is_chosen, tl.load(thresholds + place), 0.0), 0)
    return best, threshold, tl.sum(tl.where(is_chosen, slope, 0.0), 0), total


@triton.jit(do_not_specialize=["candidates"])
def decide(
    shapes, guards, sketches, levels, looks, counts, found, decisions, slopes, powers, sizes, thresholds, candidates,
    margin, beta, CHUNK: tl.constexpr,
):  # fmt: skip
    """Decide about a matrix from the sketch of the steps before, or this one's in the first; then add this one's.

    guards       the bound of each matrix that holds where there is no clip
    slopes, powers, sizes, thresholds    the tables of efficiency.py, with `candidates` thresholds in their columns
    """
    matrix = tl.program_id(0)
    bins, own, new = tl.arange(0, BINS), sketches + matrix * BINS, counts + matrix * BINS
    old, added = tl.load(own + bins), tl.load(new + bins).to(tl.float32)
    guard, shape = tl.load(guards + matrix), shapes + matrix * SHAPE_COLUMNS
    rows, columns = tl.load(shape + ROWS), tl.load(shape + COLUMNS)
    gain, threshold, slope, total = _best_threshold(
        own, new, tl.sum(old, 0) == 0, guard, slopes, powers, sizes, thresholds, candidates, CHUNK
    )
    side = tl.minimum(rows, columns)
    acts = (gain > margin) & (total >= ENOUGH) & ((side >= NARROW) | (side == 1))
    decision = decisions + matrix * DECISION_COLUMNS
    tl.store(decision + CLIPS, tl.where(acts, 1.0, 0.0))
    tl.store(decision + THRESHOLD, tl.where(acts, threshold, guard))
    tl.store(decision + FACTOR, tl.where(acts, tl.div_rn(tl.full((), 1.0, tl.float32), slope), 1.0))
    tl.debug_barrier()  # all threads have read the sketches
    result = found + matrix * FOUND_COLUMNS
    count, entries = tl.load(result + COUNT), (rows * columns).to(tl.float32)
    tl.store(new + bins, tl.zeros((BINS,), tl.int32))
    if count > 0:  # else the step says nothing
        tl.store(own + bins, tl.where(tl.load(result + OUTGROWN) != 0, old, beta * old + added))
        # A few entries among zeros say nothing of the size that the next step's will have.
        tl.store(levels + matrix, tl.where(2 * count >= entries, tl.load(result + LEVEL), float("inf")))
        tl.store(looks + tl.load(shape + PARAMETER), tl.load(result + LOOKS) + 1)  # the same for all of a parameter's
