"""Singular directions that a matrix determines: well separated from the next, and well above rounding errors.

Where two singular values are equal, or differ by less than the precision of the input, their directions are arbitrary,
and statistics along them would be too. Everything here is computed in fp64 on the host.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch

from ..arrays import Array, check_floating, dtype_name
from ..matrix.singular import top_singular

_ANGLE = 1e-2  # the largest accepted error of a direction, in radians
_TOLERANCE = 1e-9  # residual of the triplets
_SMALL = 512  # the shorter side below which one thread is faster than several


class Directions(NamedTuple):
    """Some singular triplets of a matrix G, in fp64 on the host."""

    u: np.ndarray  # (m, count)
    s: np.ndarray  # (count,)
    v: np.ndarray  # (n, count)
    gap: np.ndarray  # (count,): the distance to the nearest other eigenvalue of [[0, G], [G^T, 0]]

    def take(self, at: np.ndarray) -> "Directions":
        """Return a view of the directions with the given indices."""
        return Directions(self.u[:, at], self.s[at], self.v[:, at], self.gap[at])


def singular_directions(G: Array, ks: Sequence[int]) -> Directions:
    """Return the singular triplets of `G`, (m, n), of the ranks `ks` (1 is the largest).

    Raise a ValueError where G does not determine one of these directions.

    >>> singular_directions(np.diag([3.0, 2.0, 0.0]), [1, 2]).gap.tolist()
    [1.0, 1.0]
    """
    g = finite_matrix(G, "G")
    if not g.any():
        raise ValueError("G is zero: it has no singular directions")
    shorter = min(g.shape)
    wrong = [k for k in ks if not isinstance(k, int | np.integer) or isinstance(k, bool) or not 1 <= k <= shorter]
    if not ks or wrong:
        raise ValueError(f"k must be from 1 to {shorter}, the shorter side of G, got {wrong or list(ks)}")
    found, rank, determined = _triplets(G, g, max(ks), _TOLERANCE)
    if max(ks) > rank:
        raise ValueError(f"k must be at most {rank}, the rank of G, got {max(ks)}")
    at = np.array(ks) - 1
    for i in at[~determined[at]]:
        values = f"its distance to the next is {found.gap[i] / found.s[0]:.1e} of the largest"
        raise ValueError(f"singular value {i + 1} of G is not simple, {values}: its directions are not determined")
    return found.take(at)


def leading_directions(G: Array, count: int, tol: float = _TOLERANCE) -> Directions:
    """Return the first `count` triplets of `G`, (m, n), or as many as it determines: none where it is zero.

    >>> leading_directions(np.diag([3.0, 2.0, 1.0, 1.0, 0.0]), 4).s.round(9).tolist()
    [3.0, 2.0]
    """
    g = finite_matrix(G, "G")
    if not g.any():
        return Directions(g[:, :0], g[0, :0], g.T[:, :0], g[0, :0])
    found, rank, determined = _triplets(G, g, min(count, *g.shape), tol)
    first = int(np.append(determined[:rank], False).argmin())
    return found.take(np.arange(first))


def _triplets(G: Array, g: np.ndarray, count: int, tol: float) -> tuple[Directions, int, np.ndarray]:
    """Return the first `count` triplets, the number of them above rounding errors, and which are determined."""
    top, shorter = np.abs(g).max(), min(g.shape)
    u, s, v, residual = leading_triplets(g / top, min(count + 1, shorter), tol)
    noise = max(max(g.shape) * 2.0**-52 * s[0], _precision(G) * float(np.linalg.norm(g / top)) / shorter**0.5)
    rank = int(np.count_nonzero(s > noise))  # smaller ones are rounding errors
    gap = _gaps(s, g.shape)
    determined = (np.maximum(residual * s[0] / _ANGLE, noise) <= gap)[:count]
    return Directions(u, top * s, v, top * gap).take(np.arange(count)), rank, determined


def leading_triplets(x: np.ndarray, k: int, tol: float) -> tuple[np.ndarray, ...]:
    """Return u, s, v and residuals of the leading k triplets of `x`, (m, n), by `top_singular` on torch.

    torch is used since its threads share a busy machine better than numpy's.
    """
    with one_thread() if min(x.shape) < _SMALL else nullcontext():
        u, s, v, residual = top_singular(torch.from_numpy(np.ascontiguousarray(x)), k, tol=tol, restarts=100)
    return u.numpy(), s.numpy(), v.numpy(), residual.numpy()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: many operations on small matrices are slowed down by threads that wait."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def _gaps(s: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the distance of each leading singular value to the nearest other eigenvalue of [[0, G], [G^T, 0]].

    Its eigenvalues are +-s and |m - n| zeros, so the next below the last singular value is 0, or -s if G is square.
    """
    last = 0.0 if shape[0] != shape[1] else -s[-1]
    below = np.append(s[1:], last if s.size == min(shape) else np.nan)
    above = np.append(np.inf, s[:-1])
    return np.fmin(s - below, above - s)


def _precision(x: Array) -> float:
    """Return the machine epsilon of the dtype of `x`."""
    return {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype_name(x)]


def finite_matrices(x: Array, name: str, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Yield each matrix of `x`, (..., m, n), in fp64 on the host; raise an error if one is not finite or not (m, n)."""
    check_floating(x, name)
    if x.ndim < 2 or tuple(x.shape[-2:]) != tuple(shape) or 0 in x.shape:
        raise ValueError(f"{name} must have matrices of G's shape, (..., {shape[0]}, {shape[1]}), got {tuple(x.shape)}")
    for each in x.reshape(-1, *shape):
        yield finite_matrix(each, name)


def finite_matrix(x: Array, name: str) -> np.ndarray:
    """Return `x` in fp64 on the host; raise an error unless it is one matrix of finite numbers."""
    check_floating(x, name)
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"{name} must be one matrix with entries in it, got shape {tuple(x.shape)}")
    y: Any = x.detach().double().cpu().numpy() if isinstance(x, torch.Tensor) else np.asarray(x, np.float64)
    if not np.isfinite(y).all():
        raise ValueError(f"{name} has {np.count_nonzero(~np.isfinite(y))} entries that are NaN or infinite")
    return y
