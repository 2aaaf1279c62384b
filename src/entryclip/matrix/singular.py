"""Leading singular triplets by Rayleigh-Ritz in a block Krylov space (Golub and Underwood 1977).

From a first block B of orthonormal columns the space span(B, AB, A^2 B, ...), A = x x^T, is grown with full
reorthogonalization; the singular triplets of x restricted to it approximate the leading ones of x. The iteration stops
when the residual, ||x v - s u|| relative to the largest singular value, is below a tolerance.

    top_singular      k triplets of each matrix of a batch, in torch, numpy or jax: blocks of k + 8 columns, restarted
                      until the residuals are small, which also resolves a flat spectrum (a Gaussian matrix)
    leading_triplet   one triplet of one torch matrix, several times faster: a block of one column, at most 24 products
                      with x and x^T each. For callers that need sigma_1 of thousands of matrices to 1e-3
"""

import functools
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..arrays import Array, constant, eye_like, widen
from ..operators import scaled_norm
from .sign import check_matrix

_EXTRA = 8  # columns of a block beyond k, for faster convergence
_DEPTH = 15  # blocks in the space before a restart
_LANCZOS_DEPTHS = (8, 12, 24)  # sizes at which `leading_triplet` tests convergence; 24 is for flat spectra
_LANCZOS_TOLERANCE = 1e-4  # of the residual; the error of sigma_1 is of the order of its square
_SMALL = 48  # the shorter side up to which `leading_triplet` takes a full SVD, which is cheaper there


class TopSingular(NamedTuple):
    """Singular triplets, largest first: x v = s u and x^T u = s v up to the residual."""

    u: Array  # (..., m, k)
    s: Array  # (..., k)
    v: Array  # (..., n, k)
    residual: Array  # (..., k): ||x v - s u|| or ||x^T u - s v||, the larger, over s_1; the other is rounding error


class Triplet(NamedTuple):
    """One singular triplet of one matrix: x v = sigma u."""

    u: Tensor  # (m,)
    sigma: float
    v: Tensor  # (n,)


def top_singular(
    x: Array, k: int = 1, *, tol: float = 5e-4, restarts: int = 30, generator: np.random.Generator | None = None
) -> TopSingular:
    """Compute the leading k singular triplets of each matrix of `x`, (..., m, n), with their residuals.

    It stops when all residuals are below `tol`, or after `restarts` restarts: look at `.residual` to know which. A
    singular value is off by at most its residual times s_1 (much less when it is well separated); the angle of a
    direction is of the order of its residual over the gap to the next singular value. `generator` draws the first block
    (default: the same block in every call).

    >>> import torch
    >>> top = top_singular(torch.diag(torch.arange(400.0)), k=2)
    >>> top.s.round(decimals=1), bool((top.residual < 5e-4).all())
    (tensor([399., 398.]), True)
    """
    xp = check_matrix(x)
    k = int(k) if isinstance(k, np.integer) else k
    _check_options(x, k, tol, restarts)
    if 0 in x.shape[:-2]:
        u, s, vh = xp.linalg.svd(widen(x), full_matrices=False)
        return TopSingular(u[..., :k], s[..., :k], vh[..., :k, :].mT, s[..., :k])
    top, unit, _ = scaled_norm(widen(x))
    if not bool((top < float("inf")).all()):
        raise ValueError("x has NaN or infinite entries, so it has no singular vectors")
    tall = x.shape[-2] > x.shape[-1]
    wide = unit.mT if tall else unit
    if 2 * _DEPTH * (k + _EXTRA) > wide.shape[-2]:
        found = _dense(xp, wide, k, tol)
    else:
        start = (generator or np.random.default_rng(0)).standard_normal((*wide.shape[:-1], k + _EXTRA))
        block = xp.linalg.qr(constant(start, wide))[0].mT
        found = _krylov(xp, wide, block, k, depths=(_DEPTH,), tol=tol, restarts=restarts)
    u, s, v, residual = found
    return TopSingular(v if tall else u, s * top[..., 0], u if tall else v, residual)


def leading_triplet(x: Tensor) -> Triplet:
    """Compute the leading singular triplet of `x`, (m, n), fast: at most 24 Lanczos steps from a fixed random vector.

    `sigma` is never too large. It is exact to rounding where it stands out, and usually within 1e-3 on a flat spectrum.
    Use `top_singular` where the residual must be known.

    >>> x = torch.randn(200, 300, generator=torch.Generator().manual_seed(0))
    >>> x[7, 9] = 100.0
    >>> top = leading_triplet(x)
    >>> round(top.sigma, 2), int(top.u.abs().argmax()), int(top.v.abs().argmax())
    (102.45, 7, 9)
    """
    if min(x.shape) <= _SMALL:
        left, values, right = torch.linalg.svd(x, full_matrices=False)
        return Triplet(left[:, 0], float(values[0]), right[0])
    tall = x.shape[0] >= x.shape[1]
    wide = x.mT if tall else x
    start = _unit_vector(wide.shape[0]).to(wide)[None]
    u, s, v, _ = _krylov(torch, wide, start, 1, depths=_LANCZOS_DEPTHS, tol=_LANCZOS_TOLERANCE, restarts=0)
    return Triplet((v if tall else u)[:, 0], float(s), (u if tall else v)[:, 0])


def _check_options(x: Array, k: Any, tol: float, restarts: Any) -> None:
    if not tol > 0 or not isinstance(restarts, int) or restarts < 0:
        raise ValueError(f"tol must be > 0 and restarts a whole number >= 0, got {tol} and {restarts}")
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= min(x.shape[-2:]):
        raise ValueError(f"k must be a whole number from 1 to {min(x.shape[-2:])}, the shorter side of x, got {k!r}")


def _dense(xp: Any, y: Array, k: int, tol: float) -> TopSingular:
    """Return the leading triplets of small matrices `y`: from the Gram matrix, or by SVD where that is too inexact."""
    found = _measured(xp, y, *_ritz(xp, y, k))
    if bool((found.residual < tol).all()):
        return found
    left, s, vh = xp.linalg.svd(y, full_matrices=False)
    return _measured(xp, y, left[..., :k], s[..., :k], vh[..., :k, :].mT)


def _krylov(
    xp: Any, y: Array, block: Array, k: int, *, depths: tuple[int, ...], tol: float, restarts: int
) -> TopSingular:
    """Return the leading k triplets of `y`, (..., m, n) with m <= n, from a first block of orthonormal rows.

    The block has shape (..., p, m). Convergence is tested when the space holds each of `depths` blocks; after the last
    it is restarted from the best p vectors in it.
    """
    size = block.shape[-2]
    for _ in range(restarts + 1):
        basis, image = block, block @ y
        for depth in depths:
            basis, image = _grow(xp, y, basis, image, size=size, rows=size * depth)
            ritz, s, v = _ritz(xp, image, size)
            u = basis.mT @ ritz
            found = _measured(xp, y, u[..., :k], s[..., :k], v[..., :k])
            if bool((found.residual < tol).all()):
                return found
        block = u.mT
    return found


def _grow(xp: Any, y: Array, basis: Array, image: Array, *, size: int, rows: int) -> tuple[Array, Array]:
    """Extend an orthonormal `basis` of a Krylov space, (..., p, m), and its `image` = basis y, (..., p, n), to `rows`.

    Vectors are kept as rows, so that appending one copies contiguous memory.
    """
    while basis.shape[-2] < rows:
        new = image[..., -size:, :] @ y.mT
        new = new - (new @ basis.mT) @ basis
        new = _orthonormal(xp, new) if size > 1 else new
        # once leaves a trace of the old basis, twice is enough (Giraud et al. 2005)
        new = _orthonormal(xp, new - (new @ basis.mT) @ basis)
        basis, image = xp.concatenate([basis, new], -2), xp.concatenate([image, new @ y], -2)
    deviation = xp.abs(basis @ basis.mT - eye_like(basis)).max()
    if bool(deviation > 100 * float(xp.finfo(y.dtype).eps)):  # the space was exhausted: the last are rounding errors
        basis = _orthonormal(xp, basis)
        image = basis @ y
    return basis, image


def _orthonormal(xp: Any, rows: Array) -> Array:
    """Return orthonormal rows that span those of `rows`; a single one is divided by its norm, without a QR."""
    if rows.ndim > 2 or rows.shape[-2] > 1:
        return xp.linalg.qr(rows.mT)[0].mT
    return rows / xp.clip(xp.linalg.vector_norm(rows), 1e-30, None)


def _ritz(xp: Any, image: Array, count: int) -> tuple[Array, Array, Array]:
    """Return the leading left singular vectors, values and right singular vectors of `image`, (..., p, n).

    From its Gram matrix, which is several times faster, unless that loses the smaller ones: it squares the condition.
    """
    ritz = xp.flip(xp.linalg.eigh(image @ image.mT)[1][..., -count:], (-1,))
    v = image.mT @ ritz
    s = xp.sqrt(xp.sum(v * v, axis=-2))
    if bool((s[..., -1:] > 1e-2 * s[..., :1]).all()):
        return ritz, s, v / s[..., None, :]
    v, s, ritz = xp.linalg.svd(image.mT, full_matrices=False)
    return ritz[..., :count, :].mT, s[..., :count], v[..., :count]


def _measured(xp: Any, y: Array, u: Array, s: Array, v: Array) -> TopSingular:
    """Return the triplets with their residuals ||y v - s u|| / s_1; y^T u = s v holds by construction."""
    left = y @ v - u * s[..., None, :]
    first = s[..., :1]
    return TopSingular(u, s, v, xp.sqrt(xp.sum(left * left, axis=-2)) / xp.where(first == 0, 1.0, first))


@functools.lru_cache(64)
def _unit_vector(size: int) -> Tensor:
    drawn = torch.from_numpy(np.random.default_rng(0).standard_normal(size))
    return drawn / torch.linalg.vector_norm(drawn)
