"""The constants of a capturable AdamW step that only the device knows: from its counters, and a learning rate there."""

import torch
from torch import Tensor

from ..bias_correction import bias_corrections
from ..groups import Group


def device_constants(steps: list[Tensor], group: Group) -> dict[str, Tensor]:
    """Return fields of `plan.AdamConstants` by name: one value for each of the counters `steps`, or one for all.

    It takes about ten small launches. The fields that are missing are numbers of the host.
    """
    first, second = bias_corrections(torch.stack(steps), group["betas"])
    found = {"a": first / second.sqrt(), "b": group["eps"] * first}
    if isinstance(group["lr"], Tensor):
        lr = group["lr"].double().reshape(())
        found.update(lr=lr, decay=1 - lr * group["weight_decay"])
    return found
