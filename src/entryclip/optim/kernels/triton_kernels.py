"""The kernels of AdamW's fused step on a GPU, in Triton. gpu.py launches each for all matrices of a group at once.

    walk     take the gradients into the moments, look at the direction u = m / (a sqrt(v) + b), move the weights
    locate   per matrix: the rank of the quantile, and whether the bracket around the last one holds it
    digit    count eight bits of the bit patterns of |u|: of the magnitudes that `walk` kept, or of u made anew
    choose   per matrix: go into the bin that holds the rank; after the last digit the quantile itself

The last three are in triton_search.py. Methods with momentum have a walk of their own, in triton_momentum.py. Where a
clip is to keep the root mean square, `walk` sums the squares of u before and after the clip (triton_norms.py) in a pass
before the one that moves the weights.

A matrix is cut into tiles of TILE entries; program i works on tile i. Every pass makes the same u to the bit: the
operations are written out and launched without fusion into others. Sums over programs are integers, and a tile keeps
its magnitudes in room of its own, so that the order of the programs changes nothing.
"""

import triton
import triton.language as tl

from ...quantiles.triton_digits import at, magnitude
from .triton_norms import add_up_if_last, restore_norm, squares
from .triton_precision import load_widened, store_rounded, width_of

# Columns of `table`, one row of 64-bit integers per matrix: addresses, number of entries, whether all are aligned; then
# the address of the half-precision parameter whose fp32 copy is at P, its precision (FP32 where there is none) and the
# gradient's, and the first and the number of the matrix's tiles.
P, G, M, V, N, IS_ALIGNED, H, H_PRECISION, G_PRECISION, FIRST_TILE, TILES, TABLE_COLUMNS = (
    tl.constexpr(i) for i in range(12)
)
# Columns of `constants`, one row of fp32 per matrix: the fields of plan.AdamConstants in their order.
SIGN, BETA1, FRESH1, BETA2, FRESH2, A, B, DECAY, LR, CONSTANT_COLUMNS = (tl.constexpr(i) for i in range(10))
# Columns of `search`, one row of 64-bit integers per clipped matrix. LOW and HIGH are the bracket, as bit patterns.
LOW, HIGH, ZEROS, BELOW, INSIDE, TOP, RANK, PREFIX, BEYOND, IS_HIT, SEARCH_COLUMNS = (
    tl.constexpr(i) for i in range(11)
)
# Columns of `estimates`, one row of fp64 per clipped matrix.
QUANTILE, FRACTION, WIDTH, ESTIMATE_COLUMNS = (tl.constexpr(i) for i in range(4))

SMOOTH, HARD = tl.constexpr(1), tl.constexpr(2)  # plan.Operator
ADAM, MOMENTUM, NESTEROV, GRADIENT = (tl.constexpr(i) for i in range(4))  # plan.DirectionKind
# What a walk does about root mean squares: nothing; measure them, and leave the weights; restore what was measured.
NO_RMS, MEASURE, RESTORE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
NARROWEST, WIDEST = tl.constexpr(2**-8), tl.constexpr(1 / 16)  # half width of a bracket, as a share of the quantile
OPEN = tl.constexpr(1 - 1 / 64)  # from this level on a bracket has no upper end: few entries lie above


@triton.jit
def address_of(table, matrix, column, start):
    """Return the address of entry `start` of one of a matrix's arrays: 64-bit here, 32-bit offsets within a tile."""
    return tl.load(table + matrix * TABLE_COLUMNS + column).to(tl.pointer_type(tl.float32)) + start


@triton.jit
def own_tile(table, tiles, TILE: tl.constexpr):
    """Return the matrix of this program, the first entry of its tile, and how many entries the tile has."""
    matrix = tl.load(tiles + 2 * tl.program_id(0))
    start = tl.load(tiles + 2 * tl.program_id(0) + 1).to(tl.int64) * TILE
    left = tl.minimum(tl.load(table + matrix * TABLE_COLUMNS + N) - start, TILE).to(tl.int32)
    return matrix, start, left


@triton.jit
def is_aligned(table, matrix, left):
    """Tell whether 16-byte loads fit: no vector of four entries is cut by the tile's end."""
    return (tl.load(table + matrix * TABLE_COLUMNS + IS_ALIGNED) != 0) & (left % 4 == 0)


@triton.jit
def advance(m, v, x, constants):
    """Return the moments with the gradient x taken in; `constants` are the matrix's own."""
    d = x - m
    fresh = tl.load(constants + FRESH1)
    m = tl.where(fresh < 0.5, tl.fma(fresh, d, m), tl.fma(-tl.load(constants + BETA1), d, x))  # torch's lerp
    v = tl.fma(tl.load(constants + FRESH2) * x, x, tl.load(constants + BETA2) * v)  # torch's order: x * x may overflow
    return m, v


@triton.jit
def direction(m, v, a, b):
    """Return AdamW's bias-corrected direction, the same bits in every pass."""
    return tl.div_rn(m, tl.fma(tl.sqrt_rn(v), a, b))


@triton.jit
def clip(u, c, OPERATOR: tl.constexpr, LIMITS: tl.constexpr):
    """Clip u at the threshold c. A NaN threshold gives NaN; an infinite u gives NaN, or the operator's limit."""
    poison = tl.where(c != c, c, 0.0)
    if OPERATOR == SMOOTH:
        rate = tl.div_rn(tl.full((), 1.0, tl.float32), c)
        t = tl.abs(u) * rate
        kept = tl.exp(-tl.where(t < 104.0, t, 104.0))  # 0 * inf is NaN and counts as beyond: exp(-104) is 0
        y = u * kept
        if LIMITS:
            y = tl.where(kept == 0.0, 0.0, y)
            y = tl.where(rate == 0.0, u, y)
            y = tl.where(u == u, y, u) + poison
        else:
            y = y + poison * u
    elif OPERATOR == HARD:
        y = tl.where(u < -c, -c, tl.where(u > c, c, u))
        if LIMITS:
            y = y + poison
        else:
            y = y + poison * u
    else:
        y = u
    return y


@triton.jit
def look(u, ok, low, high, room, counts, top, count, ROOM: tl.constexpr):
    """Count the zeros and the magnitudes below the bracket, and keep those inside it, after the `count` kept before."""
    bits = magnitude(u)
    counts += tl.where(ok & (bits == 0), 1, 0) + tl.where(ok & (bits < low), 1 << 16, 0)
    top = tl.maximum(top, tl.where(ok, bits, 0))
    inside = (ok & (bits >= low) & (bits < high)).to(tl.int32)
    place = count + tl.cumsum(inside, 0) - 1
    tl.store(room + place, bits, (inside != 0) & (place < ROOM))
    return counts, top, count + tl.sum(inside, 0)


@triton.jit
def add_counts(search, kept_counts, matrix, counts, top, count):
    """Add what `look` counted in this tile to its matrix's row."""
    found = search + matrix * SEARCH_COLUMNS
    tl.store(kept_counts + tl.program_id(0), count)
    both = tl.sum(counts, 0)
    tl.atomic_add(found + ZEROS, (both & 0xFFFF).to(tl.int64), sem="relaxed")
    tl.atomic_add(found + BELOW, (both >> 16).to(tl.int64), sem="relaxed")
    tl.atomic_add(found + INSIDE, count.to(tl.int64), sem="relaxed")
    tl.atomic_max(found + TOP, tl.max(top, 0).to(tl.int64), sem="relaxed")


@triton.jit
def place_of(table, matrix, column, precision_column, start):
    """Return where entry `start` of an array of any precision is, as an integer, and the precision."""
    precision = tl.load(table + matrix * TABLE_COLUMNS + precision_column)
    return tl.load(table + matrix * TABLE_COLUMNS + column) + start * width_of(precision), precision


@triton.jit
def _walk_tile(
    table, constants, thresholds, search, kept, kept_counts, partials, factors, matrix, start, left,
    moves, measures, is_clipped,
    UPDATE: tl.constexpr, LOOK: tl.constexpr, OPERATOR: tl.constexpr, LIMITS: tl.constexpr, RMS: tl.constexpr,
    HALF: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    if ALIGNED:
        left = left // 4 * 4  # as it is: the compiler now sees that no vector is cut
    row = constants + matrix * CONSTANT_COLUMNS
    a, b = tl.load(row + A), tl.load(row + B)
    p, g = address_of(table, matrix, P, start), address_of(table, matrix, G, start)
    m_at, v_at = address_of(table, matrix, M, start), address_of(table, matrix, V, start)
    c = tl.load(thresholds + matrix, mask=is_clipped, other=1.0)
    if HALF:
        first_g, g_precision = place_of(table, matrix, G, G_PRECISION, start)
        first_h, h_precision = place_of(table, matrix, H, H_PRECISION, start)
    if LOOK:
        low = tl.load(search + matrix * SEARCH_COLUMNS + LOW, mask=is_clipped, other=0).to(tl.int32)
        high = tl.load(search + matrix * SEARCH_COLUMNS + HIGH, mask=is_clipped, other=0).to(tl.int32)
        room = kept + tl.program_id(0).to(tl.int64) * ROOM
        counts = tl.zeros((BLOCK,), tl.int32)  # zeros, and 2^16 times what lies below: one register for both
        top = tl.zeros((BLOCK,), tl.int32)
        count = tl.zeros((), tl.int32)
    if RMS == MEASURE:
        before, after = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    for k in range(0, TILE, BLOCK):
        offsets = k + tl.arange(0, BLOCK)
        ok = offsets < left
        m = tl.load(at(m_at, offsets, ALIGNED), ok, 0.0)
        v = tl.load(at(v_at, offsets, ALIGNED), ok, 0.0)
        if UPDATE:
            if HALF:
                x = load_widened(first_g, g_precision, offsets, ok, ALIGNED) * tl.load(row + SIGN)
            else:
                x = tl.load(at(g, offsets, ALIGNED), ok, 0.0) * tl.load(row + SIGN)
            m, v = advance(m, v, x, row)
            tl.store(at(m_at, offsets, ALIGNED), m, ok)
            tl.store(at(v_at, offsets, ALIGNED), v, ok)
        u = direction(m, v, a, b)
        if LOOK:
            if is_clipped:
                counts, top, count = look(u, ok, low, high, room, counts, top, count, ROOM)
        if RMS == MEASURE:
            if measures:
                before += squares(u, ok)
                after += squares(clip(u, c, OPERATOR, LIMITS), ok)
        if moves:
            y = tl.where(is_clipped, clip(u, c, OPERATOR, LIMITS), u)
            if RMS == RESTORE:
                y = restore_norm(y, factors, matrix)
            w = tl.load(at(p, offsets, ALIGNED), ok, 0.0)
            w = tl.fma(-tl.load(row + LR), y, tl.load(row + DECAY) * w)
            tl.store(at(p, offsets, ALIGNED), w, ok)
            if HALF:
                store_rounded(first_h, h_precision, offsets, w, ok, ALIGNED)
    if LOOK:
        if is_clipped:
            add_counts(search, kept_counts, matrix, counts, top, count)
    if RMS == MEASURE:
        if measures:
            tile = tl.load(table + matrix * TABLE_COLUMNS + FIRST_TILE) + start // TILE
            tl.store(partials + 2 * tile, tl.sum(before, 0))
            tl.store(partials + 2 * tile + 1, tl.sum(after, 0))


@triton.jit(do_not_specialize=["clipped"])
def walk(
    table, constants, tiles, ready, thresholds, search, kept, kept_counts, partials, factors, arrivals, clipped,
    UPDATE: tl.constexpr, LOOK: tl.constexpr, OPERATOR: tl.constexpr, LIMITS: tl.constexpr, RMS: tl.constexpr,
    HALF: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """Pass over all matrices. With UPDATE those that are ready move; without it, those that are not.

    The first `clipped` matrices are clipped when they move. With LOOK their entries below the bracket are counted, and
    those inside it kept. With RMS = MEASURE the clipped ones are measured where they would move; RESTORE moves them
    all. With HALF there are matrices whose gradient, or whose parameter, is in half precision.
    """
    matrix, start, left = own_tile(table, tiles, TILE)
    is_clipped = matrix < clipped
    is_ready = tl.load(ready + matrix)
    works, moves, measures = True, True, True
    if UPDATE:
        moves, measures = is_ready != 0, (is_ready != 0) & is_clipped
        if RMS == MEASURE:
            moves = matrix >= clipped
    elif RMS != RESTORE:
        works = is_ready == 0
        moves = RMS != MEASURE
    if works & is_aligned(table, matrix, left):
        _walk_tile(
            table, constants, thresholds, search, kept, kept_counts, partials, factors, matrix, start, left,
            moves, measures, is_clipped,
            UPDATE, LOOK, OPERATOR, LIMITS, RMS, HALF, True, TILE, BLOCK, ROOM,
        )  # fmt: skip
    elif works:
        _walk_tile(
            table, constants, thresholds, search, kept, kept_counts, partials, factors, matrix, start, left,
            moves, measures, is_clipped,
            UPDATE, LOOK, OPERATOR, LIMITS, RMS, HALF, False, TILE, BLOCK, ROOM,
        )  # fmt: skip
    if RMS == MEASURE:
        if works & measures:
            row = table + matrix * TABLE_COLUMNS
            add_up_if_last(
                partials + 2 * tl.load(row + FIRST_TILE), tl.load(row + TILES), arrivals + matrix, factors + 2 * matrix
            )
