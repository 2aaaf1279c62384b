"""The inputs on which operators and rules are checked, and the comparison of what comes out."""

import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ..arrays import Array, dtype_name, to_numpy

_DTYPES = ("float64", "float32", "bfloat16", "float16")
ROUNDING = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}


def inputs(shape: tuple[int, ...]) -> Iterator[Array]:
    """Yield the same Gaussian numbers in every library and dtype."""
    numbers = np.random.default_rng(0).standard_normal(shape)
    for name in _DTYPES:
        yield torch.from_numpy(numbers).to(getattr(torch, name))
        if name != "bfloat16":
            yield numbers.astype(name)
    if importlib.util.find_spec("jax") is not None:
        jnp = importlib.import_module("jax.numpy")
        for name in _DTYPES[1:]:
            yield jnp.asarray(numbers, dtype=name)


def per_matrix(x: Array, value: Any) -> Array:
    """Return thresholds of shape (batch, 1, 1) as an array of the library of `x`."""
    t = np.broadcast_to(np.asarray(value, np.float32), (x.shape[0],)).reshape(-1, 1, 1)
    if isinstance(x, torch.Tensor):
        return torch.from_numpy(t.copy())
    return t if isinstance(x, np.ndarray) else importlib.import_module("jax.numpy").asarray(t)


def set_first(x: Array, value: float) -> Array:
    """Set the first entry of `x`, in place where the library allows it, and return the array."""
    first = (0,) * x.ndim
    if not isinstance(x, torch.Tensor | np.ndarray):
        return x.at[first].set(value)  # jax
    x[first] = value
    return x


def same(a: Array, b: Array, law: str, subject: object) -> None:
    """Raise an AssertionError naming the law where `a` and `b` differ by more than the rounding of their dtype."""
    tol = ROUNDING[dtype_name(a)]
    close = np.allclose(to_numpy(a), to_numpy(b), rtol=tol, atol=tol, equal_nan=True)
    expect(close, law, subject, f"{dtype_name(a)}: {to_numpy(a).ravel()[:4]} against {to_numpy(b).ravel()[:4]}")


def expect(holds: bool, law: str, subject: object, case: Any = "") -> None:
    """Raise an AssertionError naming the law and the case where it does not hold."""
    if not holds:
        raise AssertionError(f"{name_of(subject)} broke a law: it {law}. Case: {case}")


def name_of(subject: object) -> str:
    """Return the name of a function, or else how an object prints."""
    return getattr(subject, "__name__", None) or str(subject)
