"""How efficient a clip is for noise of a given law, from a sketch of |z|: no model of the noise is needed.

A small signal under symmetric noise z passes an odd operator f with slope E[f'(z)], and noise of variance E[f(z)^2]
around it. So

    gain = E[f'(z)]^2 E[z^2] / E[f(z)^2]

is how many times larger the batch would have to be without the clip: the asymptotic relative efficiency of f against
the mean (Huber 1964). It is at most 1 for Gaussian noise, and without limit where z has no variance.

A sketch counts |z| in bins of an eighth of an octave, from 2^-8 to 2^24. Sketches of parts add up to that of the whole.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from .arrays import Array, cast, constant, namespace, quiet
from .log_scales import log_bits

BINS = 256
_PER_OCTAVE, _LOWEST = 8, -8
_SHIFT, _FIRST = 20, (127 + _LOWEST) * _PER_OCTAVE  # the exponent and three bits of the mantissa of fp32
_CANDIDATES = 2.0 ** (np.arange(-3 * _PER_OCTAVE, 12 * _PER_OCTAVE + 1) / _PER_OCTAVE)  # thresholds, of z's unit

Operator = Callable[[Array, Any], Array]


class BestThreshold(NamedTuple):
    """The most efficient threshold of each sketch; arrays of shape (...)."""

    threshold: Array  # in the unit of z
    gain: Array  # the relative efficiency there, of the best one
    slope: Array  # E[f'(z)] there


def bin_of(z: Array) -> Array:
    """Return the bin of each |z|, in fp32; what lies beyond the last edges is in the outermost bins."""
    return namespace(z).clip((log_bits(z) >> _SHIFT) - _FIRST, 0, BINS - 1)


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


def best_threshold(counts: Array, operator: Operator, tie: float) -> BestThreshold:
    """Return the threshold with the largest gain; of those within a share `tie` of it, the largest threshold.

    >>> z = torch.randn(300, 300, generator=torch.Generator().manual_seed(0))
    >>> z[0] *= 50
    >>> from entryclip.operators import hard_clip
    >>> found = best_threshold(sketch(z), hard_clip, 0.02)
    >>> round(float(found.threshold), 1), f"{float(found.gain):.1f} {float(found.slope):.2f}"
    (3.4, '8.0 1.00')
    """
    xp = namespace(counts)
    slopes, squares, sizes, candidates = _tables(operator, xp, getattr(counts, "device", None))
    with quiet(xp):
        share = counts / xp.clip(counts.sum(-1)[..., None], constant(1e-30, counts), None)
        slope = share @ slopes
        power = (share @ (sizes * sizes))[..., None]
        gain = xp.clip(slope, 0.0, None) ** 2 * power / xp.clip(share @ squares, constant(1e-30, counts), None)
        best = xp.amax(gain, -1)[..., None]
        last = len(candidates) - 1
        backwards = xp.flip(gain >= (1 - tie) * best, (-1,))
        place = last - xp.argmax(cast(backwards, xp.int32), -1)[..., None]
    take = (lambda a, i: torch.gather(a, -1, i)) if xp is torch else (lambda a, i: xp.take_along_axis(a, i, -1))
    return BestThreshold(candidates[place[..., 0]], best[..., 0], take(slope, place)[..., 0])


def log_variance(counts: Array) -> Array:
    """Return the variance of log2 |z| of each sketch, (...)."""
    _, _, sizes, _ = _tables(None, namespace(counts), getattr(counts, "device", None))
    xp = namespace(counts)
    share = counts / xp.clip(counts.sum(-1)[..., None], constant(1e-30, counts), None)
    level = xp.log2(sizes)
    mean = (share @ level)[..., None]
    return (share * (level - mean) ** 2).sum(-1)


@functools.lru_cache(maxsize=64)
def _tables(operator: Operator | None, xp: Any, device: Any) -> tuple[Array, Array, Array, Array]:
    """Return f' and f^2 of every bin (rows) and candidate threshold (columns), the bins' sizes, and the thresholds."""
    edges = 2.0 ** (_LOWEST + np.arange(BINS + 1) // _PER_OCTAVE) * (1 + np.arange(BINS + 1) % _PER_OCTAVE / 8)
    low, high = edges[:-1], edges[1:]
    sizes = np.sqrt(low * high)
    squares = slopes = np.zeros((BINS, len(_CANDIDATES)))
    if operator is not None:
        f = [operator(each[:, None] + 0 * _CANDIDATES, _CANDIDATES[None]) for each in (low, high, sizes)]
        slopes, squares = (f[1] - f[0]) / (high - low)[:, None], f[2] ** 2
    tables = [each.astype(np.float32) for each in (slopes, squares, sizes, _CANDIDATES)]
    if xp is torch:
        return tuple(torch.from_numpy(each).to(device) for each in tables)  # type: ignore[return-value]
    return tuple(xp.asarray(each) for each in tables)  # type: ignore[return-value]
