"""AdamW's fast path on a CPU: the same step in one pass over memory, or two where the threshold needs this step's data.

Behind it is adamw.c, called once for all parameters of a group. The quantile comes out of the pass that makes the
direction: what lies around the last step's quantile is kept and selected from, which is exact; where that misses, and
at the first step, the plain quantile is taken of the direction.
"""

import ctypes
import functools
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..arrays import on_host
from ..clip import Clip
from ..operators import hard_clip, smooth_shrinkage
from ..selection import OPEN, WIDTH
from ..thresholds import State, Step, ranked
from .direction import matrix_shape
from .native import library

UPDATE, STORE, LOAD, COLLECT, MOVE = 1, 2, 4, 8, 16  # as in adamw.c
OPERATORS: dict[Any, int] = {smooth_shrinkage: 1, hard_clip: 2}
_LARGEST = 2**31 - 1
_NARROWEST = 2**-8
_CACHED = 1 << 22  # entries up to which the direction is stored between two passes: beyond, it is made anew
_SMALL = 1 << 12  # entries of a matrix below which a batch of them is faster together, by the plain path


class Adam(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_float) for name in ("sign", "beta1", "fresh1", "beta2", "fresh2", "a", "b", "decay", "lr")
    )


class Job(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("p", "m", "v", "w", "g")),
        ("n", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("first", "second", "operator", "low", "high")),
        ("threshold", ctypes.c_float),
        ("q", ctypes.c_double),
        ("multiple", ctypes.c_double),
        ("adam", Adam),
        ("quantile", ctypes.c_double),
        ("found", ctypes.c_int32),
    )


class Desk(ctypes.Structure):
    _fields_ = (
        ("kept", ctypes.c_void_p),
        ("room", ctypes.c_int64),
        ("found", ctypes.c_void_p),
        ("threads", ctypes.c_int32),
    )


class Guess(NamedTuple):
    """Where the quantile was, and how far to either side of it to look."""

    value: float = 0.0
    width: float = WIDTH

    def ends(self, q: float | None) -> tuple[int, int] | None:
        """The bit patterns between which to look, the upper one only where much lies above."""
        if q is None or not 0 < self.value < math.inf:
            return None
        low, high = np.array([1 - self.width, 1 + self.width], np.float32) * np.float32(self.value)
        return int(low.view(np.int32)), _LARGEST if q >= OPEN else int(high.view(np.int32))

    def followed_by(self, value: float, missed: bool) -> "Guess":
        """Look four times as far as it moved of late: a narrow bracket keeps little where many entries are alike."""
        moved = WIDTH if missed or not self.value else abs(value / self.value - 1)
        return Guess(value, min(max(4 * moved, 0.9 * self.width, _NARROWEST), WIDTH))


@functools.cache
def load() -> ctypes.CDLL:
    """The compiled kernel; compiled at the first call on a machine, which takes a second or two."""
    return library(Path(__file__).with_name("adamw.c"))


def applies(p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any], clip: Clip | None) -> bool:
    """Whether the fast path knows this case: contiguous fp32 on a CPU, no amsgrad, a clip by quantile or number."""
    tensors = (p, g, state["exp_avg"], state["exp_avg_sq"])
    if group["amsgrad"] or not p.numel():
        return False
    if not all(t.layout == torch.strided and t.dtype == torch.float32 for t in tensors):
        return False
    if not all(on_host(t) and t.is_contiguous() for t in tensors):
        return False
    if clip is None:
        return True
    count, n = _matrices(p, group)
    known = clip.operator in OPERATORS and hasattr(clip.rule, "level") and not clip.preserve_rms
    cut = group["blocks"] > 1 and group["transposed"]  # then a matrix is no contiguous piece of memory
    return known and not cut and (count == 1 or n >= _SMALL)


class Task(NamedTuple):
    """A parameter to be moved, with its gradient and state, and the memory of the clip's rule where it is clipped."""

    p: Tensor
    g: Tensor
    state: dict[str, Any]
    clipped: bool
    memory: State

    def jobs(self, group: dict[str, Any]) -> list[Job]:
        """One for each matrix that has a threshold of its own; as yet without a clip."""
        self.state["step"] += 1
        adam = _constants(self.state["step"].item(), group)
        count, n = _matrices(self.p, group) if self.clipped else (1, self.p.numel())
        p, m, v, g = (t.data_ptr() for t in (self.p, self.state["exp_avg"], self.state["exp_avg_sq"], self.g))
        steps = (4 * n * i for i in range(count))
        return [Job(p + i, m + i, v + i, None, g + i, n, UPDATE | MOVE, adam=adam) for i in steps]


class Fast:
    """What the fast path keeps from step to step: memory to work in, and where each quantile was. Nothing is saved."""

    def __init__(self) -> None:
        self.guesses: dict[Tensor, list[Guess]] = {}
        self.scratch = torch.empty(0)
        self.kept = np.empty(0, np.int32)

    def step_(self, tasks: list[Task], group: dict[str, Any]) -> list[State]:
        """One step of all the parameters; returns the memories of the rule."""
        clipped = [task for task in tasks if task.clipped]
        rest = [job for task in tasks if not task.clipped for job in task.jobs(group)]
        self._run((Job * len(rest))(*rest))
        memories = iter(self._clipped_step_(clipped, group) if clipped else ())
        return [next(memories) if task.clipped else task.memory for task in tasks]

    def _clipped_step_(self, tasks: list[Task], group: dict[str, Any]) -> list[State]:
        """All matrices together, with one threshold each: the rule is asked once before the passes and once after."""
        clip, when = group["post"], Step(lr=group["lr"], count=group["steps"])
        of_task = [task.jobs(group) for task in tasks]
        sizes = [len(jobs) for jobs in of_task]
        jobs = (Job * sum(sizes))(*(job for jobs in of_task for job in jobs))
        memory = {key: torch.cat([t.memory[key].reshape(-1, 1, 1) for t in tasks]) for key in tasks[0].memory}
        guesses = [g for t, size in zip(tasks, sizes, strict=True) for g in self.guesses.get(t.p) or [Guess()] * size]
        self._plan(jobs, clip, memory, guesses, when)
        self._run(jobs)
        if clip.rule.level is not None:
            guesses, memory = self._finish(jobs, clip, memory, guesses, when)
        for task, size in zip(tasks, sizes, strict=True):
            self.guesses[task.p], guesses = guesses[:size], guesses[size:]
        parts = {key: torch.split(value, sizes) for key, value in memory.items()}
        return [{k: parts[k][i].reshape(v.shape) for k, v in task.memory.items()} for i, task in enumerate(tasks)]

    def _plan(self, jobs: Any, clip: Clip, memory: State, guesses: list[Guess], when: Step) -> None:
        """The passes of each matrix, as far as they can be made without asking the rule in between."""
        rule, count = clip.rule, len(jobs)
        ask = torch.ones(count, 1, 1)
        known = torch.as_tensor(rule.known(memory)).expand(count, 1, 1).flatten().tolist()
        answers = (
            rule.threshold(ask, memory, when)[0].flatten().tolist()
        )  # where known: else a multiple of the quantile
        for job, guess, answer, is_known in zip(jobs, guesses, answers, known, strict=True):
            ends = guess.ends(rule.level)
            job.operator, job.q = OPERATORS[clip.operator], rule.level or 0.0
            job.low, job.high = ends or (_LARGEST, _LARGEST)
            look = COLLECT if ends else 0
            if is_known:
                job.threshold, job.first = answer, UPDATE | look | MOVE
            elif ends and not rule.has_memory:
                job.multiple, job.w = answer, self._scratch(job.n)
                job.first, job.second = (UPDATE | COLLECT | STORE, LOAD | MOVE) if job.w else (UPDATE | COLLECT, MOVE)
            else:
                job.first = UPDATE | look

    def _finish(
        self, jobs: Any, clip: Clip, memory: State, guesses: list[Guess], when: Step
    ) -> tuple[list[Guess], State]:
        """What is left: quantiles that were missed, the rule's memory, matrices that waited for their threshold."""
        quantiles = [job.quantile if job.found else self._plain_quantile(job) for job in jobs]
        waiting = [i for i, job in enumerate(jobs) if not (job.first & MOVE or (job.second and job.found))]
        if waiting or memory:
            thresholds, memory = clip.rule.threshold(torch.tensor(quantiles).reshape(-1, 1, 1), memory, when)
            last = (Job * len(waiting))(*(jobs[i] for i in waiting))
            for job, i in zip(last, waiting, strict=True):
                job.first, job.second, job.threshold = MOVE, 0, float(thresholds[i])
            self._run(last)
        followed = [
            guess.followed_by(quantile, missed=not job.found)
            for guess, quantile, job in zip(guesses, quantiles, jobs, strict=True)
        ]
        return followed, memory

    def _plain_quantile(self, job: Job) -> float:
        """The quantile of the direction, made anew."""
        direction = torch.empty(job.n)
        again = Job.from_buffer_copy(job)
        again.first, again.second, again.w = STORE, 0, direction.data_ptr()
        self._run((Job * 1)(again))
        return float(ranked(direction, job.q))

    def _scratch(self, n: int) -> int | None:
        if n > _CACHED:
            return None
        if self.scratch.numel() < n:
            self.scratch = torch.empty(_CACHED)
        return self.scratch.data_ptr()

    def _run(self, jobs: Any) -> None:
        threads = torch.get_num_threads()
        room = max((job.n for job in jobs if job.first & COLLECT), default=0) // 4 // threads
        if self.kept.size < room * threads:
            self.kept = np.empty(room * threads, np.int32)
        found = (ctypes.c_int64 * (4 * threads))()
        desk = Desk(self.kept.ctypes.data, room, ctypes.addressof(found), threads)
        if load().adamw(jobs, ctypes.c_int64(len(jobs)), ctypes.byref(desk)):
            raise AssertionError(f"adamw.c lacks a kind of pass: {[(job.first, job.second) for job in jobs]}")


def _matrices(p: Tensor, group: dict[str, Any]) -> tuple[int, int]:
    """How many matrices there are in `p`, and how many entries each has."""
    count = math.prod(matrix_shape(p.shape, group)[:-2])
    return count, p.numel() // max(count, 1)


def _constants(step: float, group: dict[str, Any]) -> Adam:
    """u = m / (a sqrt(v) + b) with torch's bias corrections."""
    beta1, beta2 = group["betas"]
    first, lr = 1 - beta1**step, float(group["lr"])
    a = first / math.sqrt(1 - beta2**step)
    decay = 1 - lr * group["weight_decay"]
    sign = -1.0 if group["maximize"] else 1.0
    return Adam(sign, beta1, 1 - beta1, beta2, 1 - beta2, a, group["eps"] * first, decay, lr)
