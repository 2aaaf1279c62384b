"""The matrix sign U V^T of x = U S V^T, of the last two dimensions; leading ones are a batch.

Every matrix is divided by its own norm first, so the result does not depend on its size: a fixed eps added to the norm
would stall on small gradients. A matrix with a NaN or infinite entry becomes NaN.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ..arrays import Array, cast, check_floating, double, namespace, on_host, widen
from ..operators import device_norm, scaled_norm
from .iterations import NEWTON_SCHULZ, POLAR_EXPRESS, Quintic, iterate, may_use_gram, polar_factor

_INF, _NAN = float("inf"), float("nan")


def msign(x: Array, method: str | Sequence[Quintic] = "newton_schulz", *, dtype: Any = None) -> Array:
    """Compute the matrix sign U V^T of each matrix x = U S V^T of `x`, (..., m, n). Zero stays zero.

    `method` is one of:

    newton_schulz   Jordan's five quintic steps, Muon's own: singular values in [.68, 1.14] (1.21 for small ones)
    polar_express   five optimised steps: [.86, 1.14]
    exact           iterations to the precision of the dtype; singular values below 8 eps of the norm end in [0, 1]
    svd             by singular value decomposition in fp64; such small ones end at 0
    [(a, b, c)]     your own quintic steps, on the matrix divided by its Frobenius norm

    `dtype` is the precision of the short iterations (newton_schulz, polar_express, your own): by default fp32 on a CPU,
    where bf16 products are slower, and bf16 elsewhere; fp64 stays fp64. On a device, newton_schulz in half precision
    iterates on the Gram matrix where a matrix is twice as long as wide or longer, which takes fewer operations.

    >>> import torch
    >>> msign(torch.diag(torch.tensor([5.0, -1e-3])), method="svd")
    tensor([[ 1.,  0.],
            [ 0., -1.]])
    """
    xp = check_matrix(x)
    if isinstance(method, str) and method not in _SIGNS:
        raise ValueError(f"method must be one of {', '.join(_SIGNS)}, or quintic steps, got {method!r}")
    if 0 in x.shape:
        return x + 0
    unit, finite = _normalized(widen(x))
    if _is_short(method):
        unit = cast(unit, iteration_dtype(unit, method, dtype))
        check_floating(unit, "dtype")
    elif dtype is not None:
        raise ValueError(f"dtype is for newton_schulz and polar_express; {method} has its own precision")
    sign = sign_of_unit(unit, method)
    return cast(sign if finite is True else xp.where(finite, sign, _NAN), x.dtype)


def sign_of_unit(unit: Array, method: str | Sequence[Quintic]) -> Array:
    """Return the matrix sign of matrices of Frobenius norm 1, (..., m, n), in their own precision: see `msign`."""
    return _SIGNS[method](unit) if isinstance(method, str) else _short_iteration(unit, method)


def _short_iteration(unit: Array, steps: Sequence[Quintic]) -> Array:
    return iterate(unit, steps, by_gram=may_use_gram(unit, steps))


def _normalized(y: Array) -> tuple[Array, Any]:
    """Divide each matrix by its norm, and tell which are finite: True for all, or for no need to know.

    Zero stays 0; a matrix with an entry that is not finite becomes 0, or NaN, which stays NaN.
    """
    xp = namespace(y)
    if xp is torch and not (torch.is_grad_enabled() and y.requires_grad):
        if not on_host(y):
            _, unit, norm = device_norm(y)
            return unit / torch.where(norm == 0, 1.0, norm), True
        size = torch.linalg.matrix_norm(y, keepdim=True)
        if bool(((size > 1e-15) & (size < 1e15)).all()):  # the usual case: no pass for extreme sizes
            return y / size, True
    top, unit, norm = scaled_norm(y)
    finite = top < _INF
    return xp.where(finite, unit / xp.where(norm == 0, 1.0, norm), 0.0), finite


def _sign_by_svd(y: Array) -> Array:
    """Return U V^T over the singular values that are not zero to the precision of `y`."""
    xp = namespace(y)
    u, s, vh = xp.linalg.svd(double(y), full_matrices=False)
    noise = max(y.shape[-2:]) * float(xp.finfo(y.dtype).eps) * s[..., :1]
    return cast((u * (s > noise)[..., None, :]) @ vh, y.dtype)


def iteration_dtype(x: Array, method: str | Sequence[Quintic], dtype: Any = None) -> Any:
    """Choose the dtype of an iteration: of a short one `dtype`, by default bf16 for fp32 on a GPU; else that of `x`."""
    if not _is_short(method):
        return x.dtype
    device = getattr(getattr(x, "device", None), "type", "cpu")
    return dtype or (torch.bfloat16 if device not in ("cpu", "meta") and x.dtype == torch.float32 else x.dtype)


def _is_short(method: str | Sequence[Quintic]) -> bool:
    return not isinstance(method, str) or method in ("newton_schulz", "polar_express")


def check_matrix(x: Array) -> Any:
    """Return the namespace of `x` (torch, numpy or jax.numpy); raise an error unless it holds matrices of floats."""
    xp = check_floating(x)
    if x.ndim < 2:
        raise ValueError(f"x must have two or more dimensions, the last two a matrix, got shape {tuple(x.shape)}")
    return xp


_SIGNS = {
    "newton_schulz": lambda y: _short_iteration(y, NEWTON_SCHULZ),
    "polar_express": lambda y: _short_iteration(y / 1.02, POLAR_EXPRESS),
    "exact": polar_factor,
    "svd": _sign_by_svd,
}
