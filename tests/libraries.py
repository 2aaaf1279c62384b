"""The three array libraries under one roof, for tests that run over all of them."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

LIBRARIES = ("torch", "numpy", "jax")
DTYPES = ("float64", "float32", "bfloat16", "float16")
CASES = [(library, dtype) for library in LIBRARIES for dtype in DTYPES if (library, dtype) != ("numpy", "bfloat16")]
CASES.remove(("jax", "float64"))  # only with jax's x64 switch, which is global


def make(library: str, dtype: str, values: Any) -> Any:
    numbers = np.asarray(values, np.float64)
    if library == "torch":
        return torch.from_numpy(numbers.copy()).to(getattr(torch, dtype))
    with np.errstate(over="ignore"):
        return numbers.astype(dtype) if library == "numpy" else jnp.asarray(numbers, dtype=dtype)


def values(x: Any) -> np.ndarray:
    """As fp64, whatever it was."""
    return x.detach().double().numpy() if isinstance(x, torch.Tensor) else np.asarray(x).astype(np.float64)
