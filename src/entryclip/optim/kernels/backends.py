"""The backends of fused steps by device type, each imported when a device first asks for it."""

import functools
import warnings
from collections.abc import Iterable

import torch
from torch import Tensor

from .cpu import CPUBackend
from .plan import Backend

BACKENDS: dict[str, type[Backend]] = {"cpu": CPUBackend}  # by device type


def backend_for(device_type: str) -> type[Backend] | None:
    """Return the backend for a type of device; None, with a warning at the first call, where there is none."""
    if device_type not in BACKENDS:
        _load(device_type)
    return BACKENDS.get(device_type)


def backend_of(weights: Iterable[Tensor]) -> tuple[torch.device | None, type[Backend] | None]:
    """Return the first device of these weights that has a backend, and the backend."""
    device = next((w.device for w in weights if backend_for(w.device.type)), None)
    return device, None if device is None else backend_for(device.type)


def load_backends(params: Iterable[Tensor]) -> None:
    """Import the backends of these parameters' devices: what is missing is said now, and not in the first step.

    Parameters on meta have no device yet.
    """
    for device_type in sorted({p.device.type for p in params if not p.is_meta}):
        backend_for(device_type)


@functools.cache
def _load(device_type: str) -> None:
    """Import the backend of a device. torch calls AMD's GPUs "cuda" as well."""
    if device_type != "cuda":
        warnings.warn(f"fused=True has no kernel for {device_type}: the plain step is taken there", stacklevel=4)
        return
    try:
        from .gpu import GPUBackend
    except ImportError as error:
        remedy = "pip install 'entryclip[gpu]'"
        warnings.warn(f"fused=True needs Triton on a GPU ({remedy}): the plain step is taken ({error})", stacklevel=4)
        return
    BACKENDS["cuda"] = GPUBackend
