"""The backend for a CPU: adamw.c, the structures it is called with, and its kinds of pass.

Everything that has a counterpart in adamw.c stands here: `Pass` and `JOB` follow its enum and its struct `Job`,
`Workspace` its struct of the same name.
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

from ...thresholds import ranked
from .brackets import Brackets
from .compiler import library
from .plan import DirectionKind, KernelPlan, ThresholdSource
from .scaled_cpu import ADAM, ScaledCPUBackend
from .scaled_matrices import ScaledBackend

_CACHED = 1 << 22  # entries up to which the direction is stored between two passes: beyond, it is made anew
_SMALL = 1 << 12  # entries up to which all magnitudes of a matrix are kept, so that no guess can miss the quantile
_LANES = 8  # numbers that adamw.c looks at together: it may write so many places beyond those it keeps
_OPEN = np.int32(2**31 - 1)  # a bracket's end that nothing lies above


class Pass(enum.IntFlag):
    """What one pass over a matrix does."""

    UPDATE = 1  # take the gradient into the moments
    STORE = 2  # write the direction to scratch memory
    LOAD = 4  # read the direction from there
    COLLECT = 8  # keep the magnitudes inside the bracket
    MOVE = 16  # clip the direction and move the weights


class Workspace(ctypes.Structure):
    """Memory for the threads to work in."""

    _fields_ = (
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
        *((name, "i8") for name in ("p", "m", "v", "w", "g", "n")),
        *((name, "i4") for name in ("first", "second", "operator", "limits", "low", "high")),
        ("threshold", "f4"),
        ("q", "f8"),
        ("multiple", "f8"),
        ("adam", ADAM),
        ("quantile", "f8"),
        ("found", "i4"),
    ],
    align=True,
)
Jobs = NDArray[np.void]


@functools.cache
def load_library() -> ctypes.CDLL:
    """Return the compiled kernel; the first call on a machine compiles it, which takes a second or two."""
    return library(Path(__file__).with_name("adamw.c"))


class _Memory(threading.local):
    """Working memory that all plans of a thread share: only one of them runs at a time."""

    def __init__(self) -> None:
        self.scratch = torch.empty(0, dtype=torch.float32)
        self.kept = np.empty(0, np.int32)

    def direction(self) -> int:
        """Return the address of room for one direction."""
        if not self.scratch.numel():
            self.scratch = torch.empty(_CACHED, dtype=torch.float32)
        return self.scratch.data_ptr()

    def magnitudes(self, count: int) -> NDArray[np.int32]:
        """Return room for this many magnitudes."""
        if self.kept.size < count:
            self.kept = np.empty(count, np.int32)
        return self.kept


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
        self._jobs = np.zeros(len(plan.owner), JOB)
        addresses = np.array([each.addresses for each in plan.bindings], np.int64).reshape(-1, 3)
        self._offset = 4 * plan.start
        for name, column in zip("pmv", addresses.T, strict=True):
            self._jobs[name] = column[plan.owner] + self._offset
        self._jobs["n"] = plan.size
        self._jobs["first"] = Pass.UPDATE | Pass.MOVE
        self._jobs["operator"][: plan.clipped] = plan.operator
        self._jobs["limits"] = not plan.propagate
        self._jobs["q"] = plan.q or 0.0
        self._pattern = b""  # of the sources and guesses for which the passes are written down
        self._stored = np.zeros(plan.clipped, bool)  # whose direction is kept between two passes
        self._brackets = Brackets(plan.clipped)

    def run(self, plan: KernelPlan) -> NDArray[np.float64]:
        """Do the step: see `plan.Backend`."""
        jobs = self._jobs
        constants = np.array(plan.constants, ADAM)
        jobs["adam"] = constants if len(constants) == 1 else constants[plan.owner]
        jobs["g"] = np.array([g.data_ptr() for g in plan.gradients], np.int64)[plan.owner] + self._offset
        clipped = jobs[: plan.clipped]
        if plan.is_scaled:
            _call(jobs[plan.clipped :])
            return np.zeros(plan.clipped)
        if plan.clipped:
            clipped["threshold"], clipped["multiple"] = plan.threshold, plan.multiple
            looks = np.zeros(plan.clipped, bool)
            if plan.q is not None:
                guessed, low, high = self._brackets.ends(plan.q)
                small = clipped["n"] <= _SMALL
                looks = small | guessed
                clipped["low"] = np.where(small, 1, np.where(guessed, low.view(np.int32), _OPEN))  # 1: all but zeros
                clipped["high"] = np.where(~small & guessed & np.isfinite(high), high.view(np.int32), _OPEN)
            self._write_passes(plan, clipped, looks)
            clipped["w"] = np.where(self._stored, _MEMORY.direction() if self._stored.any() else 0, 0)
        _call(jobs)
        return np.zeros(plan.clipped) if plan.q is None else self._complete(plan, clipped)

    def move(self, plan: KernelPlan, thresholds: NDArray[np.float64]) -> None:
        """Move the matrices whose threshold was awaited: see `plan.Backend`."""
        rows = np.flatnonzero(plan.source == ThresholdSource.AWAITED)
        self._move(rows, thresholds[rows])

    def hits(self, plan: KernelPlan) -> NDArray[np.bool_]:
        """Tell which brackets held their quantile: see `plan.Backend`."""
        return self._jobs["found"][: plan.clipped] != 0

    def _move(self, rows: NDArray[np.int64], thresholds: NDArray[np.float64]) -> None:
        """Move the matrices `rows` with these thresholds."""
        if not len(rows):
            return
        jobs = self._jobs[rows]
        jobs["first"], jobs["second"], jobs["threshold"] = Pass.MOVE, 0, thresholds
        _call(jobs)

    def _write_passes(self, plan: KernelPlan, jobs: Jobs, looks: NDArray[np.bool_]) -> None:
        """Write down the passes of each clipped matrix; `looks` says which have a bracket to look in."""
        pattern = plan.source.tobytes() + looks.tobytes()
        if pattern == self._pattern:
            return
        self._pattern = pattern
        known = plan.source == ThresholdSource.KNOWN
        two = looks & (plan.source == ThresholdSource.PROPORTIONAL)
        self._stored = stored = two & (jobs["n"] <= _CACHED)
        first = Pass.UPDATE | np.where(looks, Pass.COLLECT, 0) | np.where(known, Pass.MOVE, 0)
        jobs["first"] = first | np.where(stored, Pass.STORE, 0)
        jobs["second"] = np.where(stored, Pass.LOAD | Pass.MOVE, np.where(two, Pass.MOVE, 0))

    def _complete(self, plan: KernelPlan, jobs: Jobs) -> NDArray[np.float64]:
        """Find the quantiles that no bracket held, and move the matrices that need them."""
        hit = jobs["found"] != 0
        values = jobs["quantile"].copy()
        missed = np.flatnonzero(~hit)
        for i in missed:
            values[i] = _quantile_of_direction(jobs[i : i + 1])
        rows = missed[plan.source[missed] == ThresholdSource.PROPORTIONAL]
        self._move(rows, plan.multiple[rows] * values[rows])
        self._brackets.follow(values, hit)
        return values


def _quantile_of_direction(job: Jobs) -> float:
    """Return the quantile of one matrix's direction, made anew, by the plain selection."""
    direction = torch.empty(int(job["n"][0]), dtype=torch.float32)
    again = job.copy()
    again["first"], again["second"], again["w"] = Pass.STORE, 0, direction.data_ptr()
    _call(again)
    return float(ranked(direction, float(job["q"][0])))


def _call(jobs: Jobs) -> None:
    if not len(jobs):
        return
    threads = torch.get_num_threads()
    sizes = jobs["n"][(jobs["first"] & Pass.COLLECT) != 0]
    room = max(int(sizes.max(initial=0)) // 4 // threads, int(sizes.max(initial=0, where=sizes <= _SMALL))) + _LANES
    kept = _MEMORY.magnitudes(room * threads)
    found = (Found * threads)()
    workspace = Workspace(kept.ctypes.data, room, ctypes.addressof(found), threads)
    if load_library().adamw(ctypes.c_void_p(jobs.ctypes.data), ctypes.c_int64(len(jobs)), ctypes.byref(workspace)):
        raise AssertionError(f"adamw.c lacks a kind of pass: {sorted(set(jobs['first']) | set(jobs['second']))}")
