"""The kernels of AdamW's step with a clip by the scales of rows and columns, `Auto`'s, on a GPU, in Triton.

    scan      sum the logarithms of |x| by row and by column
    scale     per matrix: the scales of rows and columns from these sums, as log_scales.scales_of_sums makes them
    sketch    count the sizes of some entries of x in the unit of their scales
    decide    per matrix: whether to clip, and where, as Auto.follow and Auto.decide do (triton_decision.py)
    move      clip x at the threshold times the scales of its entry, and move the weights

x is what the clip acts on: the direction u, which `scan` makes by taking the gradients into the moments and the others
make anew, or the gradient, which `move` takes into the moments once it is clipped.

A matrix is cut into tiles of TILE / LANES rows and LANES columns, as it lies in memory; a program of `scan` and `move`
works on one of them, BLOCK entries at a time. The logarithm is the bit pattern of |x|: sums of integers are the same in
every order, so that programs add theirs to those of the others, and results have the same bits in every run.
"""

import triton
import triton.language as tl

from ... import log_scales
from ...auto_threshold import CEILING as OCTAVES
from ...efficiency import BINS as BIN_COUNT
from ...efficiency import FIRST, SHIFT
from ...quantiles.triton_digits import INFINITY, at, magnitude
from .triton_kernels import (
    CONSTANT_COLUMNS,
    DECAY,
    G_PRECISION,
    H_PRECISION,
    HARD,
    IS_ALIGNED,
    LR,
    SIGN,
    TABLE_COLUMNS,
    A,
    B,
    G,
    H,
    M,
    P,
    V,
    address_of,
    advance,
    clip,
    direction,
    place_of,
)
from .triton_precision import load_widened, store_rounded

LANES = tl.constexpr(128)  # columns of a tile
# Columns of `shapes`, one row of 64-bit integers per clipped matrix: its rows and columns in memory; the place of its
# rows in `sums`, `zeros` and `scales`, its columns follow; whether it is the transpose of what is clipped; the number
# of its parameter; every how many of its lines (rows, or columns of a transpose) a step looks at, and how many.
ROWS, COLUMNS, LINES, IS_TRANSPOSED, PARAMETER, STRIDE, LOOKED, SHAPE_COLUMNS = (tl.constexpr(i) for i in range(8))
# Columns of `found`, one row of fp32 per clipped matrix: entries that are not 0, the mean of log2 |x|, steps before.
# And whether the matrix as a whole has outgrown the ceiling.
COUNT, LEVEL, LOOKS, OUTGROWN, FOUND_COLUMNS = (tl.constexpr(i) for i in range(5))
# Columns of `decisions`, likewise: whether the operator acts, else the guard; its threshold; what its output is times.
CLIPS, THRESHOLD, FACTOR, DECISION_COLUMNS = (tl.constexpr(i) for i in range(4))
BINS, LOWEST_BIN, BIN_SHIFT = tl.constexpr(BIN_COUNT), tl.constexpr(FIRST), tl.constexpr(SHIFT)
ONE, BIAS, ABOVE = tl.constexpr(log_scales.ONE), tl.constexpr(log_scales.BIAS), tl.constexpr(OCTAVES)


@triton.jit
def _own_tile(tiles, TILE: tl.constexpr):
    """Return the matrix of this program, and the first row and column of its tile."""
    own = tiles + 3 * tl.program_id(0)
    return tl.load(own), tl.load(own + 1) * (TILE // LANES), tl.load(own + 2) * LANES


@triton.jit
def _fits_vectors(table, shapes, matrix, HALF: tl.constexpr):
    """Tell whether every row begins at a multiple of 16 bytes, in half precision too, so that 16-byte loads fit."""
    columns = tl.load(shapes + matrix * SHAPE_COLUMNS + COLUMNS)
    aligned = tl.load(table + matrix * TABLE_COLUMNS + IS_ALIGNED) != 0
    if HALF:
        return aligned & (columns % 8 == 0)
    else:
        return aligned & (columns % 4 == 0)


@triton.jit
def _sides(shapes, matrix, ALIGNED: tl.constexpr):
    """Return the rows and columns of a matrix in memory."""
    rows = tl.load(shapes + matrix * SHAPE_COLUMNS + ROWS)
    columns = tl.load(shapes + matrix * SHAPE_COLUMNS + COLUMNS)
    if ALIGNED:
        columns = columns // 4 * 4  # as it is: the compiler now sees that no vector is cut
    return rows.to(tl.int32), columns.to(tl.int32)


@triton.jit
def _ceiling_bits(level):
    """Return the bit pattern that larger ones count as, from the last step's level: log_scales.ceiling_bits."""
    exponent = tl.minimum(tl.maximum(level + ABOVE, -126.0), 128.0)
    return ((exponent + BIAS) * ONE).to(tl.int32)


@triton.jit
def _gradient(table, matrix, start, offsets, ok, HALF: tl.constexpr, ALIGNED: tl.constexpr):
    """Load gradients as fp32."""
    if HALF:
        address, precision = place_of(table, matrix, G, G_PRECISION, start)
        return load_widened(address, precision, offsets, ok, ALIGNED)
    else:
        return tl.load(at(address_of(table, matrix, G, start), offsets, ALIGNED), ok, 0.0)


@triton.jit
def _scan_tile(
    table, constants, shapes, levels, sums, zeros, excess, matrix, first_row, first_column,
    OF_GRADIENT: tl.constexpr, HALF: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows, columns = _sides(shapes, matrix, ALIGNED)
    constant = constants + matrix * CONSTANT_COLUMNS
    ceiling = _ceiling_bits(tl.load(levels + matrix))
    lanes = tl.arange(0, LANES)
    lines = tl.load(shapes + matrix * SHAPE_COLUMNS + LINES)
    column_sums = tl.zeros((BLOCK // LANES, LANES), tl.int64)
    column_zeros = tl.zeros((BLOCK // LANES, LANES), tl.int32)
    for k in range(0, tl.minimum(rows - first_row, TILE // LANES), BLOCK // LANES):
        row = first_row + k + tl.arange(0, BLOCK // LANES)
        offsets = tl.arange(0, BLOCK // LANES)[:, None] * columns + lanes[None, :]
        ok = (row < rows)[:, None] & (first_column + lanes < columns)[None, :]
        start = (first_row + k).to(tl.int64) * columns + first_column
        x = _gradient(table, matrix, start, offsets, ok, HALF, ALIGNED)
        if not OF_GRADIENT:
            m_at, v_at = address_of(table, matrix, M, start), address_of(table, matrix, V, start)
            m, v = tl.load(at(m_at, offsets, ALIGNED), ok, 0.0), tl.load(at(v_at, offsets, ALIGNED), ok, 0.0)
            m, v = advance(m, v, x * tl.load(constant + SIGN), constant)
            tl.store(at(m_at, offsets, ALIGNED), m, ok)
            tl.store(at(v_at, offsets, ALIGNED), v, ok)
            x = direction(m, v, tl.load(constant + A), tl.load(constant + B))
        whole = tl.where(ok, tl.minimum(magnitude(x), INFINITY), 0)
        bits = tl.minimum(whole, ceiling)
        if tl.max(tl.max(whole, 1), 0) > ceiling:  # rare
            tl.atomic_add(excess + matrix, tl.sum(tl.sum((whole - bits).to(tl.int64), 1), 0), sem="relaxed")
        missing = tl.where(ok & (bits == 0), 1, 0)
        column_sums += bits
        column_zeros += missing
        tl.atomic_add(sums + lines + row, tl.sum(bits.to(tl.int64), 1), mask=row < rows, sem="relaxed")
        row_zeros = tl.sum(missing, 1)
        if tl.max(row_zeros, 0) > 0:
            tl.atomic_add(zeros + lines + row, row_zeros, mask=row < rows, sem="relaxed")
    column = lines + rows + first_column + lanes
    here = first_column + lanes < columns
    tl.atomic_add(sums + column, tl.sum(column_sums, 0), mask=here, sem="relaxed")
    found = tl.sum(column_zeros, 0)
    if tl.max(found, 0) > 0:
        tl.atomic_add(zeros + column, found, mask=here, sem="relaxed")


@triton.jit
def scan(
    table, constants, tiles, shapes, levels, sums, zeros, excess,
    OF_GRADIENT: tl.constexpr, HALF: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the bit patterns of |x| in a tile to the sums of its rows and columns, and count the zeros.

    What the ceiling of the matrix cuts off them is added to its `excess`.

    Unless x is the gradient (OF_GRADIENT), take the gradients into the moments first.
    """
    matrix, row, column = _own_tile(tiles, TILE)
    if _fits_vectors(table, shapes, matrix, HALF):
        _scan_tile(
            table, constants, shapes, levels, sums, zeros, excess, matrix, row, column,
            OF_GRADIENT, HALF, True, TILE, BLOCK,
        )  # fmt: skip
    else:
        _scan_tile(
            table, constants, shapes, levels, sums, zeros, excess, matrix, row, column,
            OF_GRADIENT, HALF, False, TILE, BLOCK,
        )  # fmt: skip


@triton.jit
def sketch(
    table, constants, tiles, shapes, scales, found, counts,
    OF_GRADIENT: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Count the sizes of the entries of the lines whose turn it is, in the unit of their scales, in 256 bins.

    Program i works on TILE of these entries: tile i of `tiles`, pairs of a matrix and a number. Entries that lie beside
    each other in memory, or nearly so, follow each other.
    """
    matrix = tl.load(tiles + 2 * tl.program_id(0))
    shape = shapes + matrix * SHAPE_COLUMNS
    rows, columns = tl.load(shape + ROWS).to(tl.int32), tl.load(shape + COLUMNS).to(tl.int32)
    stride, looked = tl.load(shape + STRIDE).to(tl.int32), tl.load(shape + LOOKED).to(tl.int32)
    by_column = tl.load(shape + IS_TRANSPOSED) != 0
    turn = tl.load(found + matrix * FOUND_COLUMNS + LOOKS).to(tl.int32) % stride
    row_scales = scales + tl.load(shape + LINES)
    constant = constants + matrix * CONSTANT_COLUMNS
    a, b = tl.load(constant + A), tl.load(constant + B)
    m_at, v_at = address_of(table, matrix, M, 0), address_of(table, matrix, V, 0)
    first_g, g_precision = place_of(table, matrix, G, G_PRECISION, 0)
    across = tl.where(by_column, looked, columns)  # entries that are looked at in a row
    total = tl.where(by_column, rows, looked) * across
    bins = tl.zeros((BINS,), tl.int32)
    start = tl.load(tiles + 2 * tl.program_id(0) + 1) * TILE
    for k in range(start, tl.minimum(start + TILE, total), BLOCK):
        i = k + tl.arange(0, BLOCK)
        ok = i < total
        row, column = i // across, i % across
        row, column = tl.where(by_column, row, row * stride + turn), tl.where(by_column, column * stride + turn, column)
        entry = row.to(tl.int64) * columns + column
        if OF_GRADIENT:
            x = load_widened(first_g, g_precision, entry, ok, False)
        else:
            x = direction(tl.load(m_at + entry, ok, 0.0), tl.load(v_at + entry, ok, 0.0), a, b)
        scale = tl.load(row_scales + row, ok, 1.0) * tl.load(row_scales + rows + column, ok, 1.0)
        bits = tl.minimum(magnitude(tl.div_rn(x, scale)), INFINITY)
        bin = tl.minimum(tl.maximum((bits >> BIN_SHIFT) - LOWEST_BIN, 0), BINS - 1)
        bins += tl.histogram(bin, BINS, mask=ok & (bits != 0))
    tl.atomic_add(counts + matrix * BINS + tl.arange(0, BINS), bins, mask=bins > 0, sem="relaxed")


@triton.jit
def _move_tile(
    table, constants, shapes, scales, decisions, matrix, first_row, first_column,
    OF_GRADIENT: tl.constexpr, OPERATOR: tl.constexpr, LIMITS: tl.constexpr, HALF: tl.constexpr,
    ALIGNED: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows, columns = _sides(shapes, matrix, ALIGNED)
    constant = constants + matrix * CONSTANT_COLUMNS
    decision = decisions + matrix * DECISION_COLUMNS
    acts, threshold, factor = (
        tl.load(decision + CLIPS) != 0,
        tl.load(decision + THRESHOLD),
        tl.load(decision + FACTOR),
    )
    lanes = tl.arange(0, LANES)
    row_scales = scales + tl.load(shapes + matrix * SHAPE_COLUMNS + LINES)
    by_column = tl.load(row_scales + rows + first_column + lanes, first_column + lanes < columns, 1.0)
    for k in range(0, tl.minimum(rows - first_row, TILE // LANES), BLOCK // LANES):
        row = first_row + k + tl.arange(0, BLOCK // LANES)
        offsets = tl.arange(0, BLOCK // LANES)[:, None] * columns + lanes[None, :]
        ok = (row < rows)[:, None] & (first_column + lanes < columns)[None, :]
        start = (first_row + k).to(tl.int64) * columns + first_column
        m_at, v_at = address_of(table, matrix, M, start), address_of(table, matrix, V, start)
        m, v = tl.load(at(m_at, offsets, ALIGNED), ok, 0.0), tl.load(at(v_at, offsets, ALIGNED), ok, 0.0)
        if OF_GRADIENT:
            x = _gradient(table, matrix, start, offsets, ok, HALF, ALIGNED)
        else:
            x = direction(m, v, tl.load(constant + A), tl.load(constant + B))
        c = threshold * (tl.load(row_scales + row, row < rows, 1.0)[:, None] * by_column[None, :])
        if acts:
            x = clip(x, c, OPERATOR, LIMITS) * factor
        else:
            x = clip(x, c, HARD, LIMITS)
        if OF_GRADIENT:
            m, v = advance(m, v, x * tl.load(constant + SIGN), constant)
            tl.store(at(m_at, offsets, ALIGNED), m, ok)
            tl.store(at(v_at, offsets, ALIGNED), v, ok)
            x = direction(m, v, tl.load(constant + A), tl.load(constant + B))
        p = address_of(table, matrix, P, start)
        w = tl.load(at(p, offsets, ALIGNED), ok, 0.0)
        w = tl.fma(-tl.load(constant + LR), x, tl.load(constant + DECAY) * w)
        tl.store(at(p, offsets, ALIGNED), w, ok)
        if HALF:
            first_h, h_precision = place_of(table, matrix, H, H_PRECISION, start)
            store_rounded(first_h, h_precision, offsets, w, ok, ALIGNED)


@triton.jit
def move(
    table, constants, tiles, shapes, scales, decisions,
    OF_GRADIENT: tl.constexpr, OPERATOR: tl.constexpr, LIMITS: tl.constexpr, HALF: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Clip the entries x of a tile as its matrix's decision has it, and move the weights.

    Where x is the gradient (OF_GRADIENT), it is taken into the moments in between.
    """
    matrix, row, column = _own_tile(tiles, TILE)
    if _fits_vectors(table, shapes, matrix, HALF):
        _move_tile(
            table, constants, shapes, scales, decisions, matrix, row, column,
            OF_GRADIENT, OPERATOR, LIMITS, HALF, True, TILE, BLOCK,
        )  # fmt: skip
    else:
        _move_tile(
            table, constants, shapes, scales, decisions, matrix, row, column,
            OF_GRADIENT, OPERATOR, LIMITS, HALF, False, TILE, BLOCK,
        )  # fmt: skip
