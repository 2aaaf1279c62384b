"""Order statistics of |x| by counting passes, one per bit: for jax, traced or not, and any other library.

There is no host round trip and no branch that depends on the data, so it traces, and a device never waits. The passes
are one loop of the compiled program: unrolled, those of a model's many matrices would take minutes to compile.
"""

import sys

from ..arrays import Array, namespace
from .order import OrderStatistics, position

_Search = tuple[Array, Array, Array, Array]  # the range, (rows,) each; the magnitudes; the ranks


def bisect(bits: Array, q: float, nonzero: bool) -> OrderStatistics:
    """Halve the range of integers with one counting pass per bit over the magnitudes `bits`, (rows, n)."""
    xp = namespace(bits)
    largest = xp.iinfo(bits.dtype).max
    ranks, fraction = position(q, bits.shape[1], (bits == 0).sum(-1) if nonzero else None)
    start = xp.zeros_like(bits[:, 0])
    passes = xp.iinfo(bits.dtype).bits - 1
    search = start, xp.full_like(start, largest), bits, ranks
    if (jax := sys.modules.get("jax")) and xp is jax.numpy:
        search = jax.lax.fori_loop(0, passes, _halve, search)
    else:
        for number in range(passes):
            search = _halve(number, search)
    low = search[0]
    top = xp.amax(bits, -1)
    beyond = xp.amin(xp.where(bits > low[:, None], bits, largest), -1)
    tied = (_count_up_to(bits, low) > ranks + 1) | (low == top)
    return OrderStatistics(low, xp.where(tied, low, beyond), top, fraction)


def _halve(_: int, search: _Search) -> _Search:
    """Go into the half of the range that has the rank. It is no closure: jax compiles the same function once."""
    low, high, bits, ranks = search
    xp = namespace(bits)
    middle = low + (high - low) // 2
    enough = _count_up_to(bits, middle) > ranks
    return xp.where(enough, low, middle + 1), xp.where(enough, middle, high), bits, ranks


def _count_up_to(bits: Array, limit: Array) -> Array:
    """Count the entries of each row that are at most its `limit`, (rows,)."""
    return (bits <= limit[:, None]).sum(-1)
