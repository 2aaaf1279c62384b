"""The leading singular triplets of a matrix with their residuals, so that nobody trusts an unconverged direction.

Rayleigh-Ritz in the block Krylov space of x x^T (Golub and Underwood 1977), fully orthogonal, restarted from the best
block until the residuals are small. On a flat spectrum (a Gaussian matrix), where a few power iterations return
directions that are not singular vectors at all, it goes on until they are.
"""

from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array, constant, eye_like, widen
from ..operators import scaled_norm
from .sign import check_matrix

_EXTRA = 8  # columns of the block beyond the k asked for
_DEPTH = 15  # blocks in the Krylov space before a restart


class TopSingular(NamedTuple):
    """Singular triplets, largest first: x v = s u and x^T u = s v up to the residual."""

    u: Array  # (..., m, k)
    s: Array  # (..., k)
    v: Array  # (..., n, k)
    residual: Array  # (..., k): the larger of ||x v - s u|| and ||x^T u - s v||, over s_1


def top_singular(
    x: Array, k: int = 1, *, tol: float = 5e-4, restarts: int = 30, generator: np.random.Generator | None = None
) -> TopSingular:
    """The leading k singular triplets of each matrix, to residuals below `tol` or as far as `restarts` go.

    A singular value is off by at most its residual times s_1 (much less when it is well separated); the angle of a
    direction is of the order of its residual over the gap to the next singular value. `generator` draws the first block
    (default: always the same).

    >>> import torch
    >>> top = top_singular(torch.diag(torch.arange(400.0)), k=2)
    >>> top.s.round(decimals=1), bool((top.residual < 5e-4).all())
    (tensor([399., 398.]), True)
    """
    xp = check_matrix(x)
    k = int(k) if isinstance(k, np.integer) else k
    if not tol > 0 or not isinstance(restarts, int) or restarts < 0:
        raise ValueError(f"tol must be > 0 and restarts a whole number >= 0, got {tol} and {restarts}")
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= min(x.shape[-2:]):
        raise ValueError(f"k must be a whole number from 1 to {min(x.shape[-2:])}, the shorter side of x, got {k!r}")
    if 0 in x.shape[:-2]:
        u, s, vh = xp.linalg.svd(widen(x), full_matrices=False)
        return TopSingular(u[..., :k], s[..., :k], vh[..., :k, :].mT, s[..., :k])
    top, unit, _ = scaled_norm(widen(x))
    if not bool((top < float("inf")).all()):
        raise ValueError("x has NaN or infinite entries, so it has no singular vectors")
    tall = x.shape[-2] > x.shape[-1]
    wide = unit.mT if tall else unit
    if 2 * _DEPTH * (k + _EXTRA) > wide.shape[-2]:
        found = _measure(xp, wide, *_ritz(xp, wide.mT, k))
        if not bool((found.residual < tol).all()):
            left, s, vh = xp.linalg.svd(wide, full_matrices=False)
            found = _measure(xp, wide, left[..., :k], s[..., :k], vh[..., :k, :].mT)
    else:
        start = (generator or np.random.default_rng(0)).standard_normal((*wide.shape[:-1], k + _EXTRA))
        found = _krylov(xp, wide, k, xp.linalg.qr(constant(start, wide))[0], tol, restarts)
    u, s, v, residual = found
    return TopSingular(v if tall else u, s * top[..., 0], u if tall else v, residual)


def _krylov(xp: Any, y: Array, k: int, block: Array, tol: float, restarts: int) -> TopSingular:
    """Leading triplets of `y`, (..., m, n) with m <= n, from a first block of orthonormal columns."""
    for _ in range(restarts + 1):
        basis, image = _grow(xp, y, block)
        ritz, s, v = _ritz(xp, image, block.shape[-1])
        block = basis @ ritz
        found = _measure(xp, y, block[..., :k], s[..., :k], v[..., :k])
        if bool((found.residual < tol).all()):
            break
    return found


def _ritz(xp: Any, image: Array, count: int) -> tuple[Array, Array, Array]:
    """The leading right singular vectors, singular values and left singular vectors of `image`, (..., n, p).

    From its Gram matrix, which is several times faster, unless that loses the smaller ones: it squares the condition.
    """
    ritz = xp.flip(xp.linalg.eigh(image.mT @ image)[1][..., -count:], (-1,))
    v = image @ ritz
    s = xp.sqrt(xp.sum(v * v, axis=-2))
    if bool((s[..., -1:] > 1e-2 * s[..., :1]).all()):
        return ritz, s, v / s[..., None, :]
    left, s, right = xp.linalg.svd(image, full_matrices=False)
    return right[..., :count, :].mT, s[..., :count], left[..., :count]


def _grow(xp: Any, y: Array, block: Array) -> tuple[Array, Array]:
    """An orthonormal basis of span(B, AB, A^2 B, ...) with A = y y^T, and its image under y^T."""
    basis, image = block, y.mT @ block
    for _ in range(_DEPTH - 1):
        new = y @ image[..., -block.shape[-1] :]
        for _ in range(2):  # once leaves a trace of the old basis, twice is enough (Giraud et al. 2005)
            new = xp.linalg.qr(new - basis @ (basis.mT @ new))[0]
        basis, image = xp.concatenate([basis, new], -1), xp.concatenate([image, y.mT @ new], -1)
    deviation = xp.abs(basis.mT @ basis - eye_like(basis.mT)).max()
    if bool(deviation > 1e-3):  # the space was exhausted: the last blocks were noise
        basis = xp.linalg.qr(basis)[0]
        image = y.mT @ basis
    return basis, image


def _measure(xp: Any, y: Array, u: Array, s: Array, v: Array) -> TopSingular:
    """The triplets with their residuals."""
    left, right = y @ v - u * s[..., None, :], y.mT @ u - v * s[..., None, :]
    square = xp.maximum(xp.sum(left * left, axis=-2), xp.sum(right * right, axis=-2))
    first = s[..., :1]
    return TopSingular(u, s, v, xp.sqrt(square) / xp.where(first == 0, 1.0, first))
