"""What the jobs of both kernels on a CPU have in common: where the tensors of a matrix lie, and AdamW's constants."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .plan import AdamConstants, KernelPlan

ADAM = np.dtype([(name, "f4") for name in AdamConstants._fields])  # the struct Adam of adam.h
Jobs = NDArray[np.void]  # one for each matrix of a plan, or for each of the first ones


def point_at_parameters(jobs: Jobs, plan: KernelPlan) -> None:
    """Write down where the weights and moments of each matrix lie."""
    addresses = np.array([each.addresses for each in plan.bindings], np.int64).reshape(-1, 3)
    owner, start = plan.owner[: len(jobs)], plan.start[: len(jobs)]
    for name, column in zip("pmv", addresses.T, strict=True):
        jobs[name] = column[owner] + 4 * start


def set_step(jobs: Jobs, plan: KernelPlan) -> None:
    """Write down the constants of this step, and where the gradients lie."""
    owner, start = plan.owner[: len(jobs)], plan.start[: len(jobs)]
    constants = np.array(plan.constants, ADAM)
    jobs["adam"] = constants if len(constants) == 1 else constants[owner]
    jobs["g"] = np.array(list(map(Tensor.data_ptr, plan.gradients)), np.int64)[owner] + 4 * start
