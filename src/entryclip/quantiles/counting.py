"""Order statistics of |x| by counting passes, one per bit: for jax, traced or not, and any other library.

There is no host round trip and no branch that depends on the data, so it traces, and a device never waits. The passes
are one loop of the compiled program: unrolled, those of a model's many matrices would take minutes to compile.
"""

import sys

from ..arrays import Array, namespace
from .order import OrderStatistics, position


def bisect(bits: Array, q: float, nonzero: bool) -> OrderStatistics:
    """Halve the range of integers with one counting pass per bit over the magnitudes `bits`, (rows, n)."""
    xp = namespace(bits)
    largest = xp.iinfo(bits.dtype).max
    ranks, fraction = position(q, bits.shape[1], (bits == 0).sum(-1) if nonzero else None)

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        enough = _count_up_to(bits, middle) > ranks
        return xp.where(enough, low, middle + 1), xp.where(enough, middle, high)

    start = xp.zeros_like(bits[:, 0])
    passes = xp.iinfo(bits.dtype).bits - 1
    bounds = start, xp.full_like(start, largest)
    if (jax := sys.modules.get("jax")) and xp is jax.numpy:
        bounds = jax.lax.fori_loop(0, passes, halve, bounds)
    else:
        for number in range(passes):
            bounds = halve(number, bounds)
    low = bounds[0]
    top = xp.amax(bits, -1)
    beyond = xp.amin(xp.where(bits > low[:, None], bits, largest), -1)
    tied = (_count_up_to(bits, low) > ranks + 1) | (low == top)
    return OrderStatistics(low, xp.where(tied, low, beyond), top, fraction)


def _count_up_to(bits: Array, limit: Array) -> Array:
    """Count the entries of each row that are at most its `limit`, (rows,)."""
    return (bits <= limit[:, None]).sum(-1)
