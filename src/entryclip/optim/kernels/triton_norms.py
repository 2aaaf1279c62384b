"""The factor by which a clip with `preserve_rms` scales a matrix back, in Triton: the root of two sums of squares.

Floating sums depend on their order. Each tile therefore writes its own, and the program that comes last adds up those
of all tiles in the order of the tiles, whichever program that is: the result has the same bits in every run. Sums are
fp64, in which no square of an fp32 number overflows or vanishes.
"""

import triton
import triton.language as tl

LANES = tl.constexpr(128)  # partial sums that are added at a time
SPLIT = tl.constexpr(2.0**120)  # a factor may lie beyond fp32's range: it is applied as a product of two


@triton.jit
def squares(x, ok):
    """Return the squares of a block's entries."""
    wide = x.to(tl.float64)
    return tl.where(ok, wide * wide, 0.0)


@triton.jit
def add_up_if_last(partials, tiles, arrived, factor):
    """Announce that this program has written its tile's sums; the last of a matrix makes the matrix's factor.

    partials    the sums before and after the clip of each of the matrix's tiles, whose number is `tiles`
    arrived     how many of them have been announced: 0 before the first and after the last
    """
    earlier = tl.atomic_add(arrived, 1, sem="acq_rel")  # whoever sees this count sees the sums as well
    if earlier == tiles - 1:
        tl.store(arrived, 0)
        lanes = tl.arange(0, LANES)
        before, after = tl.zeros((LANES,), tl.float64), tl.zeros((LANES,), tl.float64)
        for k in range(0, tiles.to(tl.int32), LANES):
            before += tl.load(partials + 2 * (k + lanes), k + lanes < tiles, 0.0)
            after += tl.load(partials + 2 * (k + lanes) + 1, k + lanes < tiles, 0.0)
        _write_factor(factor, tl.sum(before, 0), tl.sum(after, 0))


@triton.jit
def _write_factor(factor, before, after):
    """Write the root of before / after in two factors; 1 where a sum is 0 or not finite, as match_norm has it."""
    ratio = tl.sqrt(before / after)
    is_sound = (before < float("inf")) & (after < float("inf")) & (after > 0)
    ratio = tl.where(is_sound, ratio, 1.0)
    large = tl.minimum(ratio, SPLIT)
    tl.store(factor, large.to(tl.float32))
    tl.store(factor + 1, (ratio / large).to(tl.float32))


@triton.jit
def restore_norm(y, factors, matrix):
    """Scale a matrix's clipped entries by its factor."""
    return y * tl.load(factors + 2 * matrix) * tl.load(factors + 2 * matrix + 1)
