"""AdamW's fast path on a CPU: the same step in one pass over memory, or two where the threshold needs this step's data.

Behind it is adamw.c, called once for all parameters of a group. The quantile comes out of the pass that makes the
direction: what lies around the last step's quantile is kept and selected from, which is exact; where that misses, and
at the first step, the plain quantile is taken of the direction.
"""

import ctypes
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...arrays import on_host
from ...clip import Clip
from ...thresholds import Step, ranked
from ..groups import Group
from .native import library
from .sheet import OPERATORS, Jobs, Sheet

if TYPE_CHECKING:
    from ..staged import Staged

UPDATE, STORE, LOAD, COLLECT, MOVE = 1, 2, 4, 8, 16  # as in adamw.c
_CACHED = 1 << 22  # entries up to which the direction is stored between two passes: beyond, it is made anew


class Desk(ctypes.Structure):
    _fields_ = (
        ("kept", ctypes.c_void_p),
        ("room", ctypes.c_int64),
        ("found", ctypes.c_void_p),
        ("threads", ctypes.c_int32),
    )


@functools.cache
def load() -> ctypes.CDLL:
    """The compiled kernel; compiled at the first call on a machine, which takes a second or two."""
    return library(Path(__file__).with_name("adamw.c"))


class Fast:
    """What the fast path keeps from step to step: its sheets and memory to work in. Nothing of it is saved."""

    def __init__(self) -> None:
        self.sheets: dict[Tensor, Sheet] = {}  # by a group's first parameter
        self.scratch = torch.empty(0)
        self.kept = np.empty(0, np.int32)

    def step_(self, optimizer: "Staged", params: list[Tensor], group: Group) -> list[Tensor]:
        """One step of all the parameters but those for which there is no fast path: these are returned."""
        if not params or not on_host(params[0]):
            return params
        sheet = self.sheets.get(params[0])
        if sheet is None or not sheet.fits(optimizer, params, group):
            sheet = self.sheets[params[0]] = Sheet(optimizer, params, group)
        if not sheet.facts:
            return sheet.left
        gradients = [optimizer.clipped_gradient(fact.p, group) for fact in sheet.facts]
        sheet.set_step(optimizer, gradients, group)
        sheet.jobs["first"][sheet.clipped :] = UPDATE | MOVE
        if not sheet.clipped:
            self._run(sheet.jobs)
            return sheet.left
        clip, when = group["post"], Step(lr=group["lr"])
        self._plan(sheet, clip, when)
        self._run(sheet.jobs)
        if clip.rule.level is not None:
            self._finish(sheet, clip, when)
        return sheet.left

    def _plan(self, sheet: Sheet, clip: Clip, when: Step) -> None:
        """The passes of each matrix, as far as they can be made without asking the rule in between."""
        rule: Any = clip.rule  # a QuantileRule, as sheet.py made sure
        count, jobs = sheet.clipped, sheet.jobs[: sheet.clipped]
        known = _numbers(rule.threshold_is_known(sheet.memory), count).astype(bool)
        answers = _numbers(rule.threshold(np.ones((count, 1, 1), np.float32), sheet.memory, when)[0], count)
        there, jobs["low"], jobs["high"] = sheet.ends(rule.level)
        jobs["threshold"], jobs["multiple"] = answers, answers
        pattern = known.tobytes() + there.tobytes()
        if pattern == sheet.pattern:
            return
        sheet.pattern = pattern
        jobs["operator"], jobs["q"] = OPERATORS[clip.operator], rule.level or 0.0
        two = there & ~known & (not rule.has_memory)  # the answer is a multiple of the quantile
        stored = two & (jobs["n"] <= _CACHED)
        jobs["w"] = np.where(stored, self._scratch() if stored.any() else 0, 0)
        look = np.where(there, COLLECT, 0)
        jobs["first"] = UPDATE | look | np.where(known, MOVE, 0) | np.where(stored, STORE, 0)
        jobs["second"] = np.where(stored, LOAD | MOVE, np.where(two, MOVE, 0))

    def _finish(self, sheet: Sheet, clip: Clip, when: Step) -> None:
        """What is left: quantiles that were missed, the rule's memory, matrices that waited for their threshold."""
        jobs = sheet.jobs[: sheet.clipped]
        found = jobs["found"] != 0
        quantiles = jobs["quantile"].copy()
        for i in np.flatnonzero(~found):
            quantiles[i] = self._plain_quantile(jobs[i : i + 1])
        waiting = ((jobs["first"] & MOVE) == 0) & ~((jobs["second"] != 0) & found)
        if sheet.memory or waiting.any():
            asked = quantiles.astype(np.float32).reshape(-1, 1, 1)
            rule: Any = clip.rule  # a QuantileRule, as sheet.py made sure
            thresholds, memory = rule.threshold(asked, sheet.memory, when)
            last = jobs[waiting]
            last["first"], last["second"] = MOVE, 0
            last["threshold"] = _numbers(thresholds, len(jobs))[waiting]
            self._run(last)
            for key, value in memory.items():
                sheet.memory[key][...] = value
        sheet.follow(quantiles, missed=~found)

    def _plain_quantile(self, job: Jobs) -> float:
        """The quantile of the direction, made anew."""
        direction = torch.empty(int(job["n"][0]))
        again = job.copy()
        again["first"], again["second"], again["w"] = STORE, 0, direction.data_ptr()
        self._run(again)
        return float(ranked(direction, float(job["q"][0])))

    def _scratch(self) -> int:
        if not self.scratch.numel():
            self.scratch = torch.empty(_CACHED)
        return self.scratch.data_ptr()

    def _run(self, jobs: Jobs) -> None:
        if not len(jobs):
            return
        threads = torch.get_num_threads()
        room = int(jobs["n"].max(initial=0, where=(jobs["first"] & COLLECT) != 0)) // 4 // threads
        if self.kept.size < room * threads:
            self.kept = np.empty(room * threads, np.int32)
        found = (ctypes.c_int64 * (4 * threads))()
        desk = Desk(self.kept.ctypes.data, room, ctypes.addressof(found), threads)
        if load().adamw(ctypes.c_void_p(jobs.ctypes.data), ctypes.c_int64(len(jobs)), ctypes.byref(desk)):
            raise AssertionError(f"adamw.c lacks a kind of pass: {sorted(set(jobs['first']) | set(jobs['second']))}")


def _numbers(x: Any, count: int) -> NDArray[np.float64]:
    """One per matrix."""
    return np.broadcast_to(np.asarray(x, np.float64).ravel(), (count,))
