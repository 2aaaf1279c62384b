"""The backend on a CPU for thresholds that follow the scales of rows and columns: scaled_adamw.c and its structure."""

import ctypes
import functools
import math
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from ...auto_threshold import expected
from ...log_scales import ceiling_bits
from .compiler import library
from .host_jobs import ADAM, point_at_parameters, set_step
from .host_scales import by_shape
from .plan import OPERATORS, Backend, KernelPlan, Operator

_ARRAYS = ("row_sums", "column_sums", "row_counts", "column_counts", "excess", "row_scales", "column_scales")
SCALED_JOB = np.dtype(
    [
        *((name, "i8") for name in ("p", "m", "v", "g", "rows", "columns", *_ARRAYS, "sketch")),
        *((name, "i8") for name in ("look_from", "look_by", "look_count")),
        *((name, "i4") for name in ("by_columns", "of_gradient", "ceiling", "operator", "limits")),
        ("threshold", "f4"),
        ("slope", "f4"),
        ("adam", ADAM),
    ],
    align=True,
)


@functools.cache
def load_scaled_library() -> ctypes.CDLL:
    """Return the compiled kernel; the first call on a machine compiles it, which takes a second or two."""
    return library(Path(__file__).with_name("scaled_adamw.c"))


class ScaledCPUBackend:
    """Carries out the step of a plan's clipped matrices on the host: see `scaled_matrices.ScaledBackend`.

    The kernel walks over the entries; what is as long as rows and columns is worked out here, by the functions of the
    plain path.
    """

    stages: ClassVar[frozenset[str]] = frozenset({"post", "grad"})

    def __init__(self, plan: KernelPlan, backend: Backend):
        assert plan.scaled is not None
        self._scaled, transposed = plan.scaled, plan.scaled.transposed
        self._jobs = jobs = np.zeros(plan.clipped, SCALED_JOB)
        self._owner = plan.owner[: plan.clipped]
        point_at_parameters(jobs, plan)
        jobs["limits"], jobs["by_columns"] = not plan.propagate, transposed
        jobs["of_gradient"] = plan.scaled.of_gradient
        own, other = ("column", "row") if transposed else ("row", "column")
        self._shapes = by_shape(plan.scaled)
        for matrices in self._shapes:
            at, (m, n) = matrices.index, matrices.shape
            jobs["rows"][at], jobs["columns"][at] = (n, m) if transposed else (m, n)
            for kind in ("sums", "counts", "scales"):
                jobs[f"row_{kind}"][at] = _each(getattr(matrices, f"{own}_{kind}"))
                jobs[f"column_{kind}"][at] = _each(getattr(matrices, f"{other}_{kind}"))
            jobs["sketch"][at], jobs["excess"][at] = _each(matrices.sketch), _each(matrices.excess)
            jobs["look_by"][at], jobs["look_count"][at] = matrices.stride, matrices.looked_at

    def step_(self, plan: KernelPlan) -> None:
        """Take the gradients in and move the weights, each matrix clipped as its entries call for."""
        scaled, jobs = self._scaled, self._jobs
        memory, rule, operator = scaled.memory, scaled.rule, scaled.operator
        variance, ceiling = expected(memory)
        self._scan(plan, ceiling_bits(ceiling).reshape(-1))
        scales = [each.set_scales(variance[each.index], ceiling[each.index]) for each in self._shapes]
        jobs["look_from"] = memory["looks"].astype(np.int64)[self._owner] % jobs["look_by"]
        load_scaled_library().sketch(*self._arguments(), torch.get_num_threads())
        jobs["operator"] = int(Operator.HARD)
        used = np.zeros(len(memory["looks"]), bool)
        for matrices, found in zip(self._shapes, scales, strict=True):
            at = matrices.index
            before = {"sketch": memory["sketch"][at], "level": memory["level"][at], "looks": np.float32(0)}
            seen, after = rule.follow(matrices.sketch, found, matrices.shape, before)
            decision = rule.decide(seen, operator, matrices.shape)
            jobs["operator"][at[decision.clips.reshape(-1)]] = int(OPERATORS[operator])
            jobs["threshold"][at], jobs["slope"][at] = decision.threshold.reshape(-1), decision.slope.reshape(-1)
            memory["sketch"][at], memory["level"][at] = after["sketch"], after["level"]
            used[self._owner[at[found.count.reshape(-1) > 0]]] = True
        memory["looks"] += used
        self._check(load_scaled_library().move(*self._arguments(), torch.get_num_threads()))

    def _scan(self, plan: KernelPlan, ceilings: NDArray[np.int32]) -> None:
        """Write the sums and counts of all matrices; if directions are clipped, the moments take the gradients in."""
        set_step(self._jobs, plan)
        self._jobs["ceiling"] = ceilings
        self._check(load_scaled_library().scan(*self._arguments(), torch.get_num_threads()))

    def _arguments(self) -> tuple[ctypes.c_void_p, ctypes.c_int64]:
        return ctypes.c_void_p(self._jobs.ctypes.data), ctypes.c_int64(len(self._jobs))

    def _check(self, done: int) -> None:
        if not done:
            raise MemoryError(f"no memory for the sums of {int(self._jobs['columns'].max())} columns")


def _each(x: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return the address of each element along the first dimension of a contiguous array."""
    return x.ctypes.data + x.itemsize * math.prod(x.shape[1:]) * np.arange(len(x))
