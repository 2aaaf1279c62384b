"""The constants of a capturable step that only the device knows: from its counters, and a learning rate there."""

import torch
from torch import Tensor

from ..bias_correction import bias_corrections
from ..groups import Group


def device_constants(steps: list[Tensor], group: Group) -> dict[str, Tensor]:
    """Return fields of `plan.AdamConstants` by name: one value for each of the counters `steps`, or one for all.

    It takes about ten small launches. The fields that are missing are numbers of the host.
    """
    first, second = bias_corrections(torch.stack(steps), group["betas"])
    return {"a": first / second.sqrt(), "b": group["eps"] * first, **lr_constants(group)}


def lr_constants(group: Group) -> dict[str, Tensor]:
    """Return the fields of a method's constants that depend on the learning rate, where that is a tensor."""
    if not isinstance(group["lr"], Tensor):
        return {}
    lr = group["lr"].double().reshape(())
    return {"lr": lr, "decay": 1 - lr * group["weight_decay"]}


def host_lr(group: Group) -> float:
    """Return the learning rate where it is a number, else 0: `lr_constants` has it on the device."""
    return 0.0 if isinstance(group["lr"], Tensor) else float(group["lr"])
