"""The few operations that torch, numpy and jax spell differently.

The rest of the library is written once, with the names that the three share (`abs`, `where`, `clip`, `.mT`, `@`, ...).
jax is never imported here: whoever passes a jax array has imported it already.
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
_JAX = ("jax", "jaxlib")  # the packages in which jax's array classes live


def namespace(x: Array) -> Any:
    """Return the module whose functions act on `x`: torch, numpy or jax.numpy."""
    if isinstance(x, torch.Tensor):
        return torch
    if isinstance(x, np.ndarray | np.generic):
        return np
    if type(x).__module__.partition(".")[0] in _JAX:
        return sys.modules["jax.numpy"]
    raise TypeError(f"expected a torch tensor, a numpy array or a jax array, got {type(x).__name__}")


def on_host(x: Array) -> bool:
    """Tell whether numpy can read the memory of `x`: not on a device, in a subclass, under vmap, or while traced."""
    if not isinstance(x, torch.Tensor):
        return namespace(x) is np
    if torch.compiler.is_compiling() or type(x) not in (torch.Tensor, torch.nn.Parameter) or x.device.type != "cpu":
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(x) and torch._C._len_torch_dispatch_stack() == 0


def on_device(x: torch.Tensor) -> bool:
    """Tell whether `x` lies on a device, where launches and passes over memory count, and not on a CPU."""
    return not x.is_cpu  # several times faster than to ask for the device's name


def dtype_name(x: Array) -> str:
    """Return the name of the dtype, such as `float32`, which is the same in all three libraries."""
    return str(x.dtype).removeprefix("torch.")


def check_floating(x: Array, name: str = "x") -> Any:
    """Return the namespace of `x`, or raise a TypeError if it does not hold real floating-point numbers."""
    xp = namespace(x)
    if dtype_name(x) not in _FLOATS or (xp is np and dtype_name(x) == "bfloat16"):
        kind = f"{dtype_name(x)} in {xp.__name__}"
        raise TypeError(f"{name} must be one of {', '.join(_FLOATS)}, got {kind}; convert it first")
    if xp is np and isinstance(x, np.ma.MaskedArray):
        remedy = f"pass {name}.compressed() to leave the masked entries out, or {name}.filled(0)"
        raise TypeError(f"{name} is a masked array, whose mask would be lost on the way: {remedy}")
    return xp


def cast(x: Array, dtype: Any) -> Array:
    """Convert `x` to another dtype; `x` itself where it has that dtype already."""
    if isinstance(x, torch.Tensor):
        return x.to(dtype)
    return x.astype(dtype, copy=False)


def cast_like(y: Array, x: Array) -> Array:
    """Convert `y` to the dtype of `x`, and in numpy to its kind: a 0-d array for a 0-d array, a scalar for a scalar."""
    if isinstance(y, torch.Tensor):
        return y.to(x.dtype)
    if namespace(y) is np and y.ndim == 0:  # numpy turns 0-d arrays into scalars on the way
        return np.asarray(y, dtype=x.dtype) if isinstance(x, np.ndarray) else x.dtype.type(y)
    return cast(y, x.dtype)


def as_array(x: Array) -> Array:
    """Convert a numpy scalar, which arithmetic on a 0-d array returns, back to a 0-d array."""
    return x if isinstance(x, torch.Tensor) or not isinstance(x, np.generic) else np.asarray(x)


def wide_dtype(x: Array) -> Any:
    """Return the dtype for statistics and exponentials of `x`: fp32 for half precision, else the dtype of `x`."""
    return namespace(x).float32 if dtype_name(x) in ("bfloat16", "float16") else x.dtype


def widen(x: Array) -> Array:
    """Convert half precision to fp32; `x` itself in fp32 and fp64."""
    return cast(x, wide_dtype(x))


def double(x: Array) -> Array:
    """Convert `x` to fp64; without its x64 switch jax gives fp32 instead."""
    return cast(x, torch.float64 if isinstance(x, torch.Tensor) else float)


def to_numpy(x: Array) -> np.ndarray:
    """Copy `x` to the host as a numpy array in fp32 or fp64; no copy where numpy can read its memory as it is."""
    x = widen(x)
    return x.detach().resolve_neg().cpu().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)


def constant(value: Any, like: Array, dtype: Any = None) -> Array:
    """Convert a number or array to an array with the library, dtype and device of `like`; what is too large is inf."""
    xp, dtype = namespace(like), dtype or like.dtype
    if is_number(value) and abs(value) > float(xp.finfo(dtype).max):
        value = math.inf if value > 0 else -math.inf
    if xp is not torch:
        with quiet(xp):
            return xp.asarray(value, dtype=dtype)
    if is_number(value):  # filled on the device, so that the host neither copies nor waits
        return torch.full((), value, dtype=dtype, device=like.device)
    if isinstance(value, torch.Tensor):
        return value.to(dtype)
    return torch.as_tensor(value, dtype=dtype, device=like.device)


def is_array(value: object) -> bool:
    """Tell whether `value` is a torch tensor, a numpy array or a jax array."""
    return isinstance(value, torch.Tensor | np.ndarray) or type(value).__module__.partition(".")[0] in _JAX


def is_number(value: object) -> bool:
    """Tell whether `value` is a plain real number (Python's or a numpy scalar), not an array and not a bool."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def threshold_like(value: Any, x: Array, name: str, *, wide: bool = False, per_matrix: bool = False) -> Array:
    """Convert a threshold to an array that broadcasts to `x`; of a number the value is checked, of an array the shape.

    wide         in fp32 at least
    per_matrix   refuse anything but one value for each matrix of `x`, of shape (..., 1, 1)
    """
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
    """Return the axes of one matrix: the last two, or every axis of a vector or scalar."""
    return (-2, -1)[-x.ndim :] if x.ndim else ()


def eye_like(x: Array) -> Array:
    """Return the identity with as many rows as a matrix of `x`, in its library, dtype and device."""
    xp = namespace(x)
    place = {"device": x.device} if xp is torch else {}
    return xp.eye(x.shape[-2], dtype=x.dtype, **place)


def quiet(xp: ModuleType) -> contextlib.AbstractContextManager[Any]:
    """Silence numpy where a limit passes through inf or 0/0 on purpose; torch and jax do not warn."""
    return np.errstate(all="ignore") if xp is np else contextlib.nullcontext()
