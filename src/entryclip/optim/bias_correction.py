"""Adam's bias corrections 1 - beta^t, from a step number on the host or a counter on a device."""

from typing import Any

import torch
from torch import Tensor


def bias_corrections(step: Any, betas: tuple[float, float]) -> tuple[Any, Any]:
    """Return 1 - beta1^t and 1 - beta2^t: numbers where `step` is one, else tensors beside it.

    A counter is an fp32 tensor. In that precision 1 - 0.999 would be off by 6e-5 at the first step; hence fp64, which
    all devices but Apple's have.
    """
    if isinstance(step, Tensor):
        step = step.to(torch.float32 if step.device.type == "mps" else torch.float64)
    return 1 - betas[0] ** step, 1 - betas[1] ** step
