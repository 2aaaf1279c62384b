"""Clips of singular values: operators as in operators.py, with one threshold per matrix (the last two dimensions).

    spectral_clip       singular values min(s, c)                                (section prelim_clipping_methods)
    soft_spectral_clip  singular values s / sqrt(1 + s^2/c^2): SPECTRA's clip    (Jiang et al. 2026)

Every matrix is scaled by its own size first, so accuracy does not depend on it. A matrix with a NaN or infinite entry
becomes NaN.
"""

import math
from typing import Any

import torch

from ..arrays import Array, cast, check_floating, double, eye_like, namespace, on_host, quiet, threshold_like, widen
from ..operators import global_clip, scaled_norm
from .iterations import iterate, minimax_quintics, polar_factor

_INF, _NAN = float("inf"), float("nan")


def spectral_clip(x: Array, c: Any) -> Array:
    """Cut every singular value of `x`, (..., m, n), at c, exactly: by SVD in fp64. A vector is clipped by its norm.

    >>> import torch
    >>> spectral_clip(torch.diag(torch.tensor([5.0, 0.5])), 1.0)
    tensor([[1.0000, 0.0000],
            [0.0000, 0.5000]])
    """
    xp = check_floating(x)
    if x.ndim < 2 or 0 in x.shape:
        return global_clip(x, c)
    c = threshold_like(c, x, "c", wide=True, per_matrix=True)
    y = widen(x)
    top, unit, _ = scaled_norm(y)
    u, s, vh = xp.linalg.svd(double(xp.where(top < _INF, unit, 0.0)), full_matrices=False)
    with quiet(xp):
        s = s[..., None, :] * double(top)
        clipped = cast((u * xp.minimum(s, double(c))) @ vh, y.dtype)
        return cast(_limits(y, c, top, xp.where(s[..., :1] <= double(c), y, clipped)), x.dtype)


def soft_spectral_clip(x: Array, c: Any) -> Array:
    """Take every singular value s to s / sqrt(1 + s^2/c^2) < c: SPECTRA's clip. A vector is treated by its norm.

    (XX^T + c^2 I)^(-1/2) X is the left block of the polar factor of [X, cI], whose condition number is only s_max/c. So
    the iteration for the matrix sign computes it without squaring the condition: within 1e-3 c for s_max/c from 1e-3 to
    1e4 in fp32 (from 1e3 on it iterates in fp64). On a GPU or under tracing, where reading that ratio would make the
    host wait, within 4e-3 c.

    >>> import torch
    >>> soft_spectral_clip(torch.diag(torch.tensor([300.0, 0.5])), 0.5)
    tensor([[0.5000, 0.0000],
            [0.0000, 0.3536]])
    """
    xp = check_floating(x)
    c = threshold_like(c, x, "c", wide=True, per_matrix=True)
    if 0 in x.shape:
        return x + 0
    if x.ndim > 1 and x.shape[-2] > x.shape[-1]:
        return soft_spectral_clip(x.mT, c).mT
    y = widen(x)
    top, unit, norm = scaled_norm(y)
    if x.ndim < 2:
        return cast(_soft_vector_clip(y, c, top, unit, norm), x.dtype)
    with quiet(xp):
        ratio = c / xp.where(top == 0, 1.0, top) / xp.where(norm == 0, 1.0, norm)  # threshold to Frobenius norm
        unchanged = (ratio > xp.finfo(y.dtype).eps ** -0.5) | (top == 0)
        usable = (top < _INF) & ~unchanged & (c > 0)
        r = xp.where(usable, ratio, 1.0)
        size = xp.hypot(r, xp.ones_like(r))
        left = xp.where(usable, unit / xp.where(norm == 0, 1.0, norm), 0.0)
        pair = xp.concatenate([left, eye_like(y) * r + xp.zeros_like(left[..., :1])], -1) / size
        polar = _polar(pair, r / size)[..., : y.shape[-1]]
        return cast(_limits(y, c, top, xp.where(unchanged, y, polar * c)), x.dtype)


def _soft_vector_clip(y: Array, c: Array, top: Array, unit: Array, norm: Array) -> Array:
    """Scale a vector from its norm s to s / sqrt(1 + s^2/c^2); infinite entries share c, as in the global clip."""
    xp = namespace(y)
    with quiet(xp):
        size = xp.hypot(norm * top, c + xp.zeros_like(top))
        soft = xp.where(c == _INF, y, y * (c / xp.where(size == 0, 1.0, size)))
        return xp.where((top == _INF) & (c < _INF), unit * (c / xp.where(norm == 0, 1.0, norm)), soft)


def _limits(y: Array, c: Array, top: Array, clipped: Array) -> Array:
    """Replace the result by `y` where the threshold is inf, and by NaN where `y` is not finite."""
    xp = namespace(y)
    return xp.where(c == _INF, y, xp.where(top < _INF, clipped, _NAN))


def _polar(y: Array, smallest: Array) -> Array:
    """Compute the polar factor of `y` with singular values in [smallest, 1]; in fewer steps where that can be read."""
    if not on_host(smallest):
        return polar_factor(y)
    lower = min((smallest.detach() if isinstance(smallest, torch.Tensor) else smallest).ravel().tolist())
    if lower < 1e-2:  # from 1e-3 on fp32 would lose the small singular values to the large ones
        return polar_factor(y) if lower > 1e-3 else cast(polar_factor(double(y)), y.dtype)
    return iterate(y, minimax_quintics(2.0 ** math.floor(math.log2(lower)), float(namespace(y).finfo(y.dtype).eps)))
