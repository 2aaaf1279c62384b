"""The kernels of the fused steps with momentum on a GPU, in Triton: Muon up to its matrix sign, and SGD.

    walk            take the gradients into the momentum, look at the direction u, and write the clipped direction out,
                    with the sum of its squares, or move the weights by it
    inverse_norms   per matrix: one over the Frobenius norm of what was written out

The quantile between the two walks is found by the kernels of triton_search.py. What triton_kernels.py says of tiles
and of equal bits holds here, too.
"""

import triton
import triton.language as tl

from ...quantiles.triton_digits import BF16, at
from .triton_kernels import (
    CONSTANT_COLUMNS,
    FIRST_TILE,
    GRADIENT,
    HIGH,
    LOW,
    MOMENTUM,
    NESTEROV,
    SEARCH_COLUMNS,
    TABLE_COLUMNS,
    TILES,
    G,
    M,
    P,
    V,
    add_counts,
    address_of,
    clip,
    is_aligned,
    look,
    own_tile,
)
from .triton_norms import squares as squares_of
from .triton_precision import store_rounded

# Columns of `constants`: the fields of plan.MomentumConstants in their order.
KEEP, FRESH, OF_MOMENTUM, OF_GRADIENT, DECAY, LR = (tl.constexpr(i) for i in range(6))
OUT = V  # the column of `table` with the address for the clipped direction: there is no second moment
LARGEST_FLOAT = tl.constexpr(3.4028234663852886e38)


@triton.jit
def blend(m, g, of_momentum, of_gradient, KIND: tl.constexpr):
    """Return the direction, the same bits in every pass. Only what KIND needs is read."""
    if KIND == MOMENTUM:
        return m
    elif KIND == NESTEROV:
        return tl.fma(of_gradient, g, of_momentum * m)
    else:
        return of_gradient * g


@triton.jit
def _walk_tile(
    table, constants, thresholds, search, kept, kept_counts, squares, matrix, start, left, looks, emits,
    is_clipped, KIND: tl.constexpr, UPDATE: tl.constexpr, LOOK: tl.constexpr, OPERATOR: tl.constexpr,
    LIMITS: tl.constexpr, OUTPUT: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
    ROOM: tl.constexpr,
):  # fmt: skip
    if ALIGNED:
        left = left // 4 * 4  # as it is: the compiler now sees that no vector is cut
    row = constants + matrix * CONSTANT_COLUMNS
    of_momentum, of_gradient = tl.load(row + OF_MOMENTUM), tl.load(row + OF_GRADIENT)
    p, g_at = address_of(table, matrix, P, start), address_of(table, matrix, G, start)
    m_at, out = address_of(table, matrix, M, start), tl.load(table + matrix * TABLE_COLUMNS + OUT)
    c = tl.load(thresholds + matrix, mask=is_clipped, other=1.0)
    total = tl.zeros((BLOCK,), tl.float64)  # squares of fp32 numbers do not overflow in fp64
    if LOOK:
        low = tl.load(search + matrix * SEARCH_COLUMNS + LOW, mask=looks, other=0).to(tl.int32)
        high = tl.load(search + matrix * SEARCH_COLUMNS + HIGH, mask=looks, other=0).to(tl.int32)
        room = kept + tl.program_id(0).to(tl.int64) * ROOM
        counts = tl.zeros((BLOCK,), tl.int32)
        top = tl.zeros((BLOCK,), tl.int32)
        count = tl.zeros((), tl.int32)
    for k in range(0, TILE, BLOCK):
        offsets = k + tl.arange(0, BLOCK)
        ok = offsets < left
        m = tl.zeros((BLOCK,), tl.float32)
        g = m
        if UPDATE or KIND != MOMENTUM:
            g = tl.load(at(g_at, offsets, ALIGNED), ok, 0.0)
        if KIND != GRADIENT:
            m = tl.load(at(m_at, offsets, ALIGNED), ok, 0.0)
            if UPDATE:
                m = tl.fma(tl.load(row + FRESH), g, tl.load(row + KEEP) * m)
                tl.store(at(m_at, offsets, ALIGNED), m, ok)
        u = blend(m, g, of_momentum, of_gradient, KIND)
        if LOOK:
            if looks:
                counts, top, count = look(u, ok, low, high, room, counts, top, count, ROOM)
        if emits:
            y = tl.where(is_clipped, clip(u, c, OPERATOR, LIMITS), u)
            if OUTPUT == 0:
                w = tl.load(at(p, offsets, ALIGNED), ok, 0.0)
                tl.store(at(p, offsets, ALIGNED), tl.fma(-tl.load(row + LR), y, tl.load(row + DECAY) * w), ok)
            else:
                if OUTPUT == 2:
                    store_rounded(out + 2 * start, BF16, offsets, y, ok, ALIGNED)
                else:
                    tl.store(at(out.to(tl.pointer_type(tl.float32)) + start, offsets, ALIGNED), y, ok)
                total += squares_of(y, ok)
    if LOOK:
        if looks:
            add_counts(search, kept_counts, matrix, counts, top, count)
    if OUTPUT != 0:
        if emits:
            first = tl.load(table + matrix * TABLE_COLUMNS + FIRST_TILE)
            tl.store(squares + first + start // TILE, tl.sum(total, 0))


@triton.jit(do_not_specialize=["clipped"])
def walk(
    table, constants, tiles, ready, thresholds, search, kept, kept_counts, squares, clipped,
    KIND: tl.constexpr, UPDATE: tl.constexpr, LOOK: tl.constexpr, OPERATOR: tl.constexpr, LIMITS: tl.constexpr,
    OUTPUT: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """Pass over all matrices. With UPDATE those that are ready end here; without it, those that were not.

    The first `clipped` matrices are clipped. With LOOK their entries below the bracket are counted, and those inside it
    kept. OUTPUT is 0 to move the weights, else the clipped direction is written out, in fp32 (1) or bf16 (2).
    """
    matrix, start, left = own_tile(table, tiles, TILE)
    is_clipped = matrix < clipped
    works, emits = True, True
    if UPDATE:
        emits = tl.load(ready + matrix) != 0
    else:
        works = tl.load(ready + matrix) == 0
    if works & is_aligned(table, matrix, left):
        _walk_tile(
            table, constants, thresholds, search, kept, kept_counts, squares, matrix, start, left,
            is_clipped, emits, is_clipped, KIND, UPDATE, LOOK, OPERATOR, LIMITS, OUTPUT, True, TILE, BLOCK, ROOM,
        )  # fmt: skip
    elif works:
        _walk_tile(
            table, constants, thresholds, search, kept, kept_counts, squares, matrix, start, left,
            is_clipped, emits, is_clipped, KIND, UPDATE, LOOK, OPERATOR, LIMITS, OUTPUT, False, TILE, BLOCK, ROOM,
        )  # fmt: skip


@triton.jit
def inverse_norms(table, squares, inverse, BLOCK: tl.constexpr):
    """Write one over the Frobenius norm of a matrix: 1 where that is 0, NaN where an entry is not finite.

    It is cut off at the largest float: a norm below 3e-39 would need more.
    """
    matrix = tl.program_id(0)
    row = table + matrix * TABLE_COLUMNS
    own, tiles = squares + tl.load(row + FIRST_TILE), tl.load(row + TILES).to(tl.int32)
    total = tl.zeros((BLOCK,), tl.float64)
    for k in range(0, tiles, BLOCK):
        offsets = k + tl.arange(0, BLOCK)
        total += tl.load(own + offsets, offsets < tiles, 0.0)
    norm = tl.sqrt(tl.sum(total, 0))
    result = tl.minimum(1 / tl.where(norm == 0, 1.0, norm), LARGEST_FLOAT)
    tl.store(inverse + matrix, tl.where(norm < float("inf"), result, float("nan")).to(tl.float32))
