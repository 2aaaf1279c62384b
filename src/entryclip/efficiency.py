"""How efficient a clip is for noise of a given law, from a sketch of |z|: no model of the noise is needed.

A small signal under symmetric noise z passes an odd operator f with slope E[f'(z)], and noise of variance E[f(z)^2]
around it. So

    gain = E[f'(z)]^2 E[z^2] / E[f(z)^2]

is how many times larger the batch would have to be without the clip: the asymptotic relative efficiency of f against
the mean (Huber 1964). It is at most 1 for Gaussian noise, and without limit where z has no variance.

A sketch counts |z| in bins of an eighth of an octave, from 2^-8 to 2^24. Sketches of parts add up to that of the whole.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from .arrays import Array, cast, constant, namespace, quiet
from .log_scales import log_bits

BINS = 256
_PER_OCTAVE, _LOWEST = 8, -8
SHIFT, FIRST = 20, (127 + _LOWEST) * _PER_OCTAVE  # the exponent and three bits of the mantissa of fp32
_EDGES = [2.0 ** (_LOWEST + i // _PER_OCTAVE) * (1 + i % _PER_OCTAVE / _PER_OCTAVE) for i in range(BINS + 1)]
_CANDIDATES = [
    2.0 ** (i / _PER_OCTAVE) for i in range(-3 * _PER_OCTAVE, 12 * _PER_OCTAVE + 1)
]  # thresholds, in z's unit

Operator = Callable[[Array, Any], Array]


class BestThreshold(NamedTuple):
    """The most efficient threshold of each sketch; arrays of shape (...)."""

    threshold: Array  # in the unit of z
    gain: Array  # the relative efficiency there, of the best one
    slope: Array  # E[f'(z)] there


def bin_of(z: Array) -> Array:
    """Return the bin of each |z|, in fp32; what lies beyond the last edges is in the outermost bins."""
    return namespace(z).clip((log_bits(z) >> SHIFT) - FIRST, 0, BINS - 1)


def sketch(z: Array) -> Array:
    """Count the non-zero entries of each matrix of `z`, (..., m, n), in the bins: (..., 256) in fp32.

    >>> counts = sketch(np.array([[0.0, 1.0, -1.1, 3.0]]))
    >>> np.flatnonzero(counts), counts[counts > 0]
    (array([64, 76]), array([2., 1.], dtype=float32))
    """
    xp, batch = namespace(z), tuple(z.shape[:-2])
    bins, used = bin_of(z).reshape(*batch, -1), z.reshape(*batch, -1) != 0
    if xp is torch:
        counts = torch.zeros(*batch, BINS, dtype=torch.float32, device=z.device)
        return counts.scatter_add_(-1, bins.long(), used.to(torch.float32))
    matrix = xp.arange(int(np.prod(batch, dtype=int))).reshape(*batch, 1)
    flat = (bins + matrix * BINS).reshape(-1)
    length = {"minlength" if xp is np else "length": len(matrix.reshape(-1)) * BINS}
    return cast(xp.bincount(flat, cast(used.reshape(-1), xp.float32), **length), xp.float32).reshape(*batch, BINS)


def best_threshold(counts: Array, operator: Operator, tie: float, bound: float = math.inf) -> BestThreshold:
    """Return the threshold with the largest gain; of those within a share `tie` of it, the largest threshold.

    The gain is over a hard clip at `bound`, that is over no clip at all where it is inf.

    >>> z = torch.randn(300, 300, generator=torch.Generator().manual_seed(0))
    >>> z[0] *= 50
    >>> from entryclip.operators import hard_clip
    >>> found = best_threshold(sketch(z), hard_clip, 0.02)
    >>> round(float(found.threshold), 1), f"{float(found.gain):.1f} {float(found.slope):.2f}"
    (3.4, '8.0 1.00')
    """
    xp = namespace(counts)
    slopes, squares, sizes, candidates = efficiency_tables(operator, counts)
    with quiet(xp):
        share = counts / xp.clip(counts.sum(-1)[..., None], constant(1e-30, counts), None)
        slope = share @ slopes
        plain_slope = (share @ cast(sizes < bound, xp.float32))[..., None]
        power = (share @ (xp.clip(sizes, None, bound) ** 2))[..., None]
        gain = xp.clip(slope, 0.0, None) ** 2 * power / xp.clip(share @ squares, constant(1e-30, counts), None)
        gain = gain / xp.clip(plain_slope, constant(1e-30, counts), None) ** 2
        best = xp.amax(gain, -1)[..., None]
        last = len(candidates) - 1
        backwards = xp.flip(gain >= (1 - tie) * best, (-1,))
        place = last - xp.argmax(cast(backwards, xp.int32), -1)[..., None]
    return BestThreshold(_picked(candidates + 0 * slope, place), best[..., 0], _picked(slope, place))


def _picked(x: Array, place: Array) -> Array:
    """Return the entry of each row of `x`, (..., k), at `place`, (..., 1)."""
    xp = namespace(x)
    return (torch.gather(x, -1, place) if xp is torch else xp.take_along_axis(x, place, -1))[..., 0]


def log_variance(counts: Array) -> Array:
    """Return the variance of log2 |z| of each sketch, (...)."""
    _, _, sizes, _ = efficiency_tables(None, counts)
    xp = namespace(counts)
    share = counts / xp.clip(counts.sum(-1)[..., None], constant(1e-30, counts), None)
    level = xp.log2(sizes)
    mean = (share @ level)[..., None]
    return (share * (level - mean) ** 2).sum(-1)


def efficiency_tables(operator: Operator | None, like: Array) -> tuple[Array, Array, Array, Array]:
    """Return f' and f^2 of every bin (rows) and candidate threshold (columns), the bins' sizes, and the thresholds."""
    xp = namespace(like)
    if xp is not torch:
        slopes, squares, sizes, candidates = (xp.asarray(each) for each in _numpy_tables(operator))
        return slopes, squares, sizes, candidates
    if torch.compiler.is_compiling():  # a compiler does not see through the cache, and folds the constants by itself
        return _make_tables(
            operator, torch.tensor(_EDGES, device=like.device), torch.tensor(_CANDIDATES, device=like.device)
        )
    return _torch_tables(operator, like.device)


@functools.lru_cache(maxsize=64)
def _torch_tables(operator: Operator | None, device: torch.device) -> tuple[Array, Array, Array, Array]:
    """Return the tables on a device, copied there once."""
    slopes, squares, sizes, candidates = (torch.from_numpy(each).to(device) for each in _numpy_tables(operator))
    return slopes, squares, sizes, candidates


@functools.lru_cache(maxsize=16)
def _numpy_tables(operator: Operator | None) -> tuple[Array, Array, Array, Array]:
    return _make_tables(operator, np.array(_EDGES, np.float32), np.array(_CANDIDATES, np.float32))


def _make_tables(operator: Operator | None, edges: Array, candidates: Array) -> tuple[Array, Array, Array, Array]:
    xp, low, high = namespace(edges), edges[:-1], edges[1:]
    sizes = xp.sqrt(low * high)
    squares = slopes = sizes[:, None] * candidates
    if operator is not None:
        at_low, at_high, inside = (
            operator(each[:, None] + 0 * candidates, candidates[None]) for each in (low, high, sizes)
        )
        slopes, squares = (at_high - at_low) / (high - low)[:, None], inside * inside
    return slopes, squares, sizes, candidates
