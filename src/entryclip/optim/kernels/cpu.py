"""The backend for a CPU: adamw.c, the structures it is called with, and its kinds of pass.

`Pass` and `JOB` follow the enum of passes in adamw.c and its struct `Job`, `Workspace` and `Found` the structs of the
same names. The operators and the sources of thresholds are those of plan.py.
"""

import ctypes
import enum
import functools
import threading
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from ...quantiles.selection import OPEN, WIDTH
from ...thresholds import ranked
from .compiler import library
from .host_jobs import ADAM, Jobs, point_at_parameters, set_step
from .plan import DirectionKind, KernelPlan, ThresholdSource
from .scaled_cpu import ScaledCPUBackend
from .scaled_matrices import ScaledBackend

_CACHED = 1 << 22  # entries up to which the direction is stored between two passes: beyond, it is made anew
_SMALL = 1 << 12  # entries up to which all magnitudes of a matrix are kept, so that no guess can miss the quantile
_LANES = 8  # numbers that adamw.c looks at together: it may write so many places beyond those it keeps


class Pass(enum.IntFlag):
    """What one pass over a matrix does."""

    UPDATE = 1  # take the gradient into the moments
    STORE = 2  # write the direction to scratch memory
    LOAD = 4  # read the direction from there
    COLLECT = 8  # keep the magnitudes inside the bracket
    MOVE = 16  # clip the direction and move the weights


class Workspace(ctypes.Structure):
    """Memory to work in, and how many entries of a matrix it is meant for."""

    _fields_ = (
        ("direction", ctypes.c_void_p),
        ("stored", ctypes.c_int64),
        ("small", ctypes.c_int64),
        ("kept", ctypes.c_void_p),
        ("room", ctypes.c_int64),
        ("found", ctypes.c_void_p),
        ("threads", ctypes.c_int32),
    )


class Found(ctypes.Structure):
    """What a thread has found in a pass."""

    _fields_ = (
        ("kept", ctypes.c_int64),
        ("zeros", ctypes.c_int64),
        ("above", ctypes.c_int32 * _LANES),
        ("most", ctypes.c_int32 * _LANES),
    )


JOB = np.dtype(
    [
        *((name, "i8") for name in ("p", "m", "v", "g", "n")),
        *((name, "i4") for name in ("operator", "limits", "source", "asks", "open")),
        ("threshold", "f4"),
        *((name, "f8") for name in ("q", "multiple", "widest")),
        ("adam", ADAM),
        *((name, "f8") for name in ("quantile", "width")),
        *((name, "i4") for name in ("found", "first", "second", "low", "high")),
    ],
    align=True,
)


@functools.cache
def load_library() -> ctypes.CDLL:
    """Return the compiled kernel; the first call on a machine compiles it, which takes a second or two."""
    found = library(Path(__file__).with_name("adamw.c"))
    found.adamw_step.restype = found.adamw_pass.restype = ctypes.c_int64
    return found


class _Memory(threading.local):
    """Working memory that all plans of a thread share: only one of them runs at a time."""

    def __init__(self) -> None:
        self._direction = torch.empty(0, dtype=torch.float32)
        self._kept = np.empty(0, np.int32)
        self._found = (Found * 0)()

    def workspace(self, room: int, threads: int) -> Workspace:
        """Return room for one direction, and for this many magnitudes of each thread."""
        if not self._direction.numel():
            self._direction = torch.empty(_CACHED, dtype=torch.float32)
        if self._kept.size < room * threads:
            self._kept = np.empty(room * threads, np.int32)
        if len(self._found) < threads:
            self._found = (Found * threads)()
        kept, found = self._kept.ctypes.data, ctypes.addressof(self._found)
        return Workspace(self._direction.data_ptr(), _CACHED, _SMALL, kept, room, found, threads)


_MEMORY = _Memory()


class CPUBackend:
    """Carries out the plans of one group on the host, by one call of adamw.c for all matrices."""

    uses_torch: ClassVar[bool] = False
    kinds: ClassVar[frozenset[DirectionKind]] = frozenset({DirectionKind.ADAM})
    takes_half: ClassVar[frozenset[DirectionKind]] = frozenset()
    preserves_rms: ClassVar[frozenset[DirectionKind]] = frozenset()
    spans_processes: ClassVar[bool] = False
    scaled: ClassVar[type[ScaledBackend] | None] = ScaledCPUBackend

    def __init__(self, plan: KernelPlan):
        self._jobs = jobs = np.zeros(len(plan.owner), JOB)
        point_at_parameters(jobs, plan)
        jobs["n"], jobs["limits"] = plan.size, not plan.propagate
        jobs["source"] = ThresholdSource.KNOWN
        clipped = self._clipped = jobs[: plan.clipped]
        clipped["operator"] = plan.operator
        if plan.q is not None:
            clipped["asks"], clipped["q"], clipped["open"] = True, plan.q, plan.q >= OPEN
        clipped["width"] = clipped["widest"] = WIDTH
        sizes = clipped["n"][clipped["asks"] != 0]
        self._largest = int(sizes.max(initial=0))  # of the matrices whose quantile is looked for
        self._largest_small = int(sizes.max(initial=0, where=sizes <= _SMALL))

    def run(self, plan: KernelPlan) -> NDArray[np.float64]:
        """Do the step: see `plan.Backend`."""
        jobs, clipped = self._jobs, self._clipped
        set_step(jobs, plan)
        if plan.is_scaled:
            _call("adamw_step", jobs[plan.clipped :], 0)
            return np.zeros(plan.clipped)
        clipped["source"], clipped["threshold"], clipped["multiple"] = plan.source, plan.threshold, plan.multiple
        room = max(self._largest // 4 // torch.get_num_threads(), self._largest_small) + _LANES
        if _call("adamw_step", jobs, room):
            self._find_missed(plan)
        return clipped["quantile"].copy()

    def move(self, plan: KernelPlan, thresholds: NDArray[np.float64]) -> None:
        """Move the matrices whose threshold was awaited: see `plan.Backend`."""
        rows = np.flatnonzero(plan.source == ThresholdSource.AWAITED)
        self._move(rows, thresholds[rows])

    def hits(self, plan: KernelPlan) -> NDArray[np.bool_]:
        """Tell which brackets held their quantile: see `plan.Backend`."""
        return self._clipped["found"] != 0

    def _move(self, rows: NDArray[np.int64], thresholds: NDArray[np.float64]) -> None:
        """Move the matrices `rows` with these thresholds."""
        if not len(rows):
            return
        jobs = self._jobs[rows]
        jobs["first"], jobs["threshold"] = Pass.MOVE, thresholds
        _call("adamw_pass", jobs, 0)

    def _find_missed(self, plan: KernelPlan) -> None:
        """Find the quantiles that no bracket held, and move the matrices that need them."""
        jobs = self._clipped
        missed = np.flatnonzero(jobs["found"] == 0)
        for i in missed:
            jobs["quantile"][i] = _quantile_of_direction(jobs[i : i + 1])
        jobs["width"][missed] = WIDTH
        rows = missed[plan.source[missed] == ThresholdSource.PROPORTIONAL]
        self._move(rows, plan.multiple[rows] * jobs["quantile"][rows])


def _quantile_of_direction(job: Jobs) -> float:
    """Return the quantile of one matrix's direction, made anew, by the plain selection."""
    direction = torch.empty(int(job["n"][0]), dtype=torch.float32)
    again = job.copy()
    again["first"] = Pass.STORE
    _call("adamw_pass", again, 0, direction)
    return float(ranked(direction, float(job["q"][0])))


def _call(function: str, jobs: Jobs, room: int, direction: torch.Tensor | None = None) -> int:
    """Call a function of adamw.c for these jobs and return what it does.

    room        for how many magnitudes each thread has room
    direction   where a direction goes that is kept
    """
    if not len(jobs):
        return 0
    space = _MEMORY.workspace(room, torch.get_num_threads())
    if direction is not None:
        space.direction = direction.data_ptr()
    call = getattr(load_library(), function)
    result = int(call(ctypes.c_void_p(jobs.ctypes.data), ctypes.c_int64(len(jobs)), ctypes.byref(space)))
    if result < 0:
        raise AssertionError(f"adamw.c lacks a kind of pass: {sorted(set(jobs['first']) | set(jobs['second']))}")
    return result
