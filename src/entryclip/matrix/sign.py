"""Functions of the singular values of a matrix (the last two dimensions; leading ones are a batch).

    msign               U V^T of x = U S V^T: every singular value becomes 1     (the paper's notation)
    spectral_clip       singular values min(s, c)                                (section prelim_clipping_methods)
    soft_spectral_clip  singular values s / sqrt(1 + s^2/c^2): SPECTRA's clip    (Jiang et al. 2026)

Everything is scaled by the matrix's own norm first, so nothing depends on its size: a fixed eps beside the norm would
stall on small gradients. The clips are operators as in operators.py, with one threshold per matrix; a matrix with NaN
or inf in it becomes NaN.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..arrays import Array, cast, check_floating, double, eye_like, namespace, on_host, quiet, threshold_like, widen
from ..operators import global_clip, scaled_norm
from .iterations import NEWTON_SCHULZ, POLAR_EXPRESS, Quintic, iterate, minimax_quintics, polar_factor

_INF, _NAN = float("inf"), float("nan")


def msign(x: Array, method: str | Sequence[Quintic] = "newton_schulz", *, dtype: Any = None) -> Array:
    """The matrix sign U V^T of x = U S V^T, batched over leading dimensions. Zero stays zero.

    newton_schulz   Jordan's five quintic steps, Muon's own: singular values in [.68, 1.14] (1.21 for small ones)
    polar_express   five optimised steps: [.86, 1.14]
    exact           iterations to the precision of the dtype; singular values below 8 eps of the norm end in [0, 1]
    svd             by singular value decomposition in fp64; those end at 0
    [(a, b, c)]     your own quintic steps, on the matrix divided by its Frobenius norm

    `dtype` is the precision of the short iterations: by default fp32 on a CPU, where bf16 products are slower,
    and bf16 elsewhere; fp64 stays fp64.

    >>> import torch
    >>> msign(torch.diag(torch.tensor([5.0, -1e-3])), method="svd")
    tensor([[ 1.,  0.],
            [ 0., -1.]])
    """
    xp = check_matrix(x)
    short = not isinstance(method, str) or method in ("newton_schulz", "polar_express")
    if isinstance(method, str) and method not in _METHODS:
        raise ValueError(f"method must be one of {', '.join(_METHODS)}, or quintic steps, got {method!r}")
    if 0 in x.shape:
        return x + 0
    unit, finite = _normalized(widen(x))
    if short:
        unit = cast(unit, dtype or _short_precision(getattr(getattr(x, "device", None), "type", "cpu"), unit.dtype))
        check_floating(unit, "dtype")
    elif dtype is not None:
        raise ValueError(f"dtype is for newton_schulz and polar_express; {method} has its own precision")
    sign = _METHODS[method](unit) if isinstance(method, str) else iterate(unit, method)
    return cast(sign if finite is True else xp.where(finite, sign, _NAN), x.dtype)


def spectral_clip(x: Array, c: Any) -> Array:
    """Cut every singular value at c, exactly: by SVD in fp64. A vector is clipped by its norm.

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
    the iteration for the matrix sign gives it without squaring the condition: within 1e-3 c for s_max/c from 1e-3 to
    1e4 in fp32 (in fp64 inside from 1e3 on). On a device or traced, where the ratio cannot be looked at, within 4e-3 c.

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


def _normalized(y: Array) -> tuple[Array, Any]:
    """Each matrix of `y` with Frobenius norm 1, and which are finite (True: all); the others, and zero, become zero."""
    xp = namespace(y)
    if xp is torch and on_host(y):  # the usual case, without the passes that guard the others
        size = torch.linalg.matrix_norm(y.detach(), keepdim=True)
        if bool(((size > 1e-15) & (size < 1e15)).all()) and not (torch.is_grad_enabled() and y.requires_grad):
            return y / size, True
    top, unit, norm = scaled_norm(y)
    finite = top < _INF
    return xp.where(finite, unit / xp.where(norm == 0, 1.0, norm), 0.0), finite


def _soft_vector_clip(y: Array, c: Array, top: Array, unit: Array, norm: Array) -> Array:
    """A vector scaled from its norm s to s / sqrt(1 + s^2/c^2); infinite entries share c, as in the global clip."""
    xp = namespace(y)
    with quiet(xp):
        size = xp.hypot(norm * top, c + xp.zeros_like(top))
        soft = xp.where(c == _INF, y, y * (c / xp.where(size == 0, 1.0, size)))
        return xp.where((top == _INF) & (c < _INF), unit * (c / xp.where(norm == 0, 1.0, norm)), soft)


def _limits(y: Array, c: Array, top: Array, clipped: Array) -> Array:
    """A spectral clip where it is finite; `y` itself where the threshold is inf."""
    xp = namespace(y)
    return xp.where(c == _INF, y, xp.where(top < _INF, clipped, _NAN))


def _polar(y: Array, smallest: Array) -> Array:
    """The polar factor of `y`, with singular values from `smallest` to 1: in few steps where the host can read that."""
    if not on_host(smallest):
        return polar_factor(y)
    lower = min((smallest.detach() if isinstance(smallest, torch.Tensor) else smallest).ravel().tolist())
    if lower < 1e-2:  # from 1e-3 on fp32 would lose the small singular values to the large ones
        return polar_factor(y) if lower > 1e-3 else cast(polar_factor(double(y)), y.dtype)
    return iterate(y, minimax_quintics(2.0 ** math.floor(math.log2(lower)), float(namespace(y).finfo(y.dtype).eps)))


def _sign_by_svd(y: Array) -> Array:
    """U V^T over the singular values that are not zero to the precision of `y`."""
    xp = namespace(y)
    u, s, vh = xp.linalg.svd(double(y), full_matrices=False)
    noise = max(y.shape[-2:]) * float(xp.finfo(y.dtype).eps) * s[..., :1]
    return cast((u * (s > noise)[..., None, :]) @ vh, y.dtype)


def _short_precision(device: str, dtype: Any) -> Any:
    """fp32 on a CPU and outside torch, bf16 on a device that is made for it, fp64 if that is what there is."""
    return torch.bfloat16 if device not in ("cpu", "meta") and dtype == torch.float32 else dtype


def check_matrix(x: Array) -> Any:
    """The namespace of `x`, after making sure that it holds matrices."""
    xp = check_floating(x)
    if x.ndim < 2:
        raise ValueError(f"x must have two or more dimensions, the last two a matrix, got shape {tuple(x.shape)}")
    return xp


_METHODS = {
    "newton_schulz": lambda y: iterate(y, NEWTON_SCHULZ),
    "polar_express": lambda y: iterate(y / 1.02, POLAR_EXPRESS),
    "exact": polar_factor,
    "svd": _sign_by_svd,
}
