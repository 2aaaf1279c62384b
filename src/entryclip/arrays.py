"""The few things torch, numpy and jax spell differently.

Everything above this file is written once with the names the three libraries share (`abs`, `where`, `clip`, `.mT`, `@`,
...). jax is never imported here: an array that is one of jax's proves that it has been.
"""

import contextlib
import math
import sys
from types import ModuleType
from typing import Any

import numpy as np
import torch

Array = Any  # torch.Tensor | numpy.ndarray | jax.Array: no common base class exists

_FLOATS = ("float64", "float32", "bfloat16", "float16")


def namespace(x: Array) -> Any:
    """The module whose functions act on `x`: torch, numpy or jax.numpy."""
    if isinstance(x, torch.Tensor):
        return torch
    if isinstance(x, np.ndarray | np.generic):
        return np
    if type(x).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return sys.modules["jax.numpy"]
    raise TypeError(f"expected a torch tensor, a numpy array or a jax array, got {type(x).__name__}")


def on_host(x: Array) -> bool:
    """Whether numpy can look at the memory of `x`: not on a device, in a subclass, under vmap, or while traced."""
    if not isinstance(x, torch.Tensor):
        return namespace(x) is np
    if torch.compiler.is_compiling() or type(x) not in (torch.Tensor, torch.nn.Parameter) or x.device.type != "cpu":
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(x) and torch._C._len_torch_dispatch_stack() == 0


def dtype_name(x: Array) -> str:
    """`float32`, `bfloat16`, ...: the same word in all three libraries."""
    return str(x.dtype).removeprefix("torch.")


def check_floating(x: Array, name: str = "x") -> Any:
    """The namespace of `x`, after making sure that it holds real floating-point numbers."""
    xp = namespace(x)
    if dtype_name(x) not in _FLOATS or (xp is np and dtype_name(x) == "bfloat16"):
        kind = f"{dtype_name(x)} in {xp.__name__}"
        raise TypeError(f"{name} must be one of {', '.join(_FLOATS)}, got {kind}; convert it first")
    return xp


def cast(x: Array, dtype: Any) -> Array:
    """`x` in another dtype; `x` itself where it has it already."""
    if isinstance(x, torch.Tensor):
        return x.to(dtype)
    return x.astype(dtype, copy=False)


def wide_dtype(x: Array) -> Any:
    """fp32 for half precision, else the dtype of `x`: the one in which statistics and exponentials are taken."""
    return namespace(x).float32 if dtype_name(x) in ("bfloat16", "float16") else x.dtype


def widen(x: Array) -> Array:
    """`x` in fp32 at least."""
    return cast(x, wide_dtype(x))


def double(x: Array) -> Array:
    """`x` in fp64; in jax without x64 the fp32 it has instead."""
    return cast(x, torch.float64 if isinstance(x, torch.Tensor) else float)


def constant(value: Any, like: Array, dtype: Any = None) -> Array:
    """A number or array as an array of the library, dtype and device of `like`. Too large becomes inf."""
    xp, dtype = namespace(like), dtype or like.dtype
    if is_number(value) and abs(value) > float(xp.finfo(dtype).max):
        value = math.inf if value > 0 else -math.inf
    if xp is not torch:
        with quiet(xp):
            return xp.asarray(value, dtype=dtype)
    if is_number(value):  # filled on the device: nothing is copied, nothing waits
        return torch.full((), value, dtype=dtype, device=like.device)
    if isinstance(value, torch.Tensor):
        return value.to(dtype)
    return torch.as_tensor(value, dtype=dtype, device=like.device)


def is_number(value: object) -> bool:
    """Whether `value` is a plain real number (Python's or a numpy scalar), not an array and not a bool."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def threshold_like(value: Any, x: Array, name: str, *, wide: bool = False, per_matrix: bool = False) -> Array:
    """A threshold ready for use with `x`, if `wide` in fp32 at least: numbers validated, of arrays only the shape."""
    if is_number(value) and not value >= 0:
        raise ValueError(f"{name} must be a number >= 0 (inf switches the clip off), got {value}")
    if value is None or isinstance(value, bool | np.bool_ | str):
        raise TypeError(f"{name} must be a number or an array, got {value!r}")
    t = constant(value, x, wide_dtype(x) if wide else x.dtype)
    ends = zip(reversed(t.shape), reversed(x.shape), strict=False)
    if t.ndim > x.ndim or any(a not in (1, b) for a, b in ends):
        raise ValueError(f"{name} of shape {tuple(t.shape)} does not broadcast to x of shape {tuple(x.shape)}")
    if per_matrix and any(side != 1 for side in t.shape[-2:]):
        raise ValueError(f"{name} must be one number per matrix, of shape (..., 1, 1), got shape {tuple(t.shape)}")
    return t


def matrix_axes(x: Array) -> tuple[int, ...]:
    """The axes of one matrix: the last two, or all there are of a vector or scalar."""
    return (-2, -1)[-x.ndim :] if x.ndim else ()


def eye_like(x: Array) -> Array:
    """The identity with as many rows as a matrix of `x`, in its library, dtype and device."""
    xp = namespace(x)
    place = {"device": x.device} if xp is torch else {}
    return xp.eye(x.shape[-2], dtype=x.dtype, **place)


def quiet(xp: ModuleType) -> contextlib.AbstractContextManager[Any]:
    """numpy warns where a limit passes through inf or 0/0 on purpose; torch and jax do not."""
    return np.errstate(all="ignore") if xp is np else contextlib.nullcontext()
