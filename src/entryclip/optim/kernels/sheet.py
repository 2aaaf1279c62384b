"""The matrices of a param group as adamw.c wants them, kept from step to step: Python's part of a step stays small.

A sheet is made at a group's first step and again when a parameter, its state or the group is another.
"""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...clip import Clip
from ...operators import hard_clip, smooth_shrinkage
from ...quantiles.selection import OPEN, WIDTH
from ...thresholds import State
from ..groups import Group, clips, layout_of

if TYPE_CHECKING:
    from ..staged import Staged

ADAM = np.dtype([(name, "f4") for name in ("sign", "beta1", "fresh1", "beta2", "fresh2", "a", "b", "decay", "lr")])
JOB = np.dtype(  # struct Job of adamw.c
    [
        *((name, "i8") for name in ("p", "m", "v", "w", "g", "n")),
        *((name, "i4") for name in ("first", "second", "operator", "low", "high")),
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
OPERATORS: dict[Any, int] = {smooth_shrinkage: 1, hard_clip: 2}
LARGEST = 2**31 - 1
_NARROWEST = 2**-8
_SMALL = 1 << 12  # entries of a matrix below which a batch of them is faster together, by the plain path
_OPTIONS = ("post", "amsgrad", "clip_vectors", "blocks", "transposed", "flatten")


class Fact(NamedTuple):
    """What a sheet rests on: a parameter, where it and its moments lie, and the rule's memory of it."""

    p: Tensor
    m: Tensor
    v: Tensor
    places: tuple[int, int, int]
    memory: State

    def still_holds(self, state: dict[str, Any]) -> bool:
        """Whether nothing was replaced or moved since, and the gradient is of the plain kind."""
        if state.get("exp_avg") is not self.m or state.get("exp_avg_sq") is not self.v:
            return False
        if (self.p.data_ptr(), self.m.data_ptr(), self.v.data_ptr()) != self.places:
            return False
        return plain(self.p.grad) and all(state.get(f"post_{key}") is value for key, value in self.memory.items())


class Sheet:
    """The jobs of a group's parameters, the clipped ones first; `left` are the parameters it has no jobs for."""

    def __init__(self, optimizer: "Staged", params: list[Tensor], group: Group) -> None:
        self.params, self.options = params, [group[name] for name in _OPTIONS]
        fitting = [p for p in params if applies(p, optimizer.state[p], group)]
        self.left = [p for p in params if not any(p is each for each in fitting)]
        fitting.sort(key=lambda p: not clips(group, "post", p))
        counts = [_matrices(p, group)[0] if clips(group, "post", p) else 1 for p in fitting]
        self.owner = np.repeat(np.arange(len(fitting)), counts)
        first = np.concatenate([[0], np.cumsum(counts)])[self.owner].astype(np.int64)
        sizes = np.array([p.numel() // count for p, count in zip(fitting, counts, strict=True)], np.int64)
        self.offset = (np.arange(len(self.owner)) - first) * sizes[self.owner] * 4
        clipped = [p for p in fitting if clips(group, "post", p)]
        self.clipped = sum(counts[: len(clipped)])
        self.memory = self._gather_memory(optimizer, clipped, counts, group)
        self.facts = [self._fact(optimizer.state[p], p, i < len(clipped)) for i, p in enumerate(fitting)]
        self.jobs = self._make_jobs(sizes)
        self.value, self.width = np.zeros(self.clipped), np.full(self.clipped, WIDTH)
        self.pattern = b""  # for which the kinds of pass are written down

    def fits(self, optimizer: "Staged", params: list[Tensor], group: Group) -> bool:
        """Whether it can be used for this step."""
        same = len(params) == len(self.params) and all(a is b for a, b in zip(params, self.params, strict=True))
        if not same or any(group[name] is not value for name, value in zip(_OPTIONS, self.options, strict=True)):
            return False
        return all(fact.still_holds(optimizer.state[fact.p]) for fact in self.facts)

    def _gather_memory(self, optimizer: "Staged", clipped: list[Tensor], counts: list[int], group: Group) -> State:
        """The rule's memory of all matrices in one array per key; the optimizer's state has views of it.

        As numpy's: the rules are the same in all libraries, and numpy's small operations cost the least.
        """
        own = [optimizer.memory(p, "post") or group["post"].init(layout_of(group).matrices(p)) for p in clipped]
        memory = {key: torch.cat([each[key].reshape(-1, 1, 1) for each in own]) for key in (own[0] if own else {})}
        for key, together in memory.items():
            for p, each, part in zip(clipped, own, torch.split(together, counts[: len(clipped)]), strict=True):
                optimizer.remember(p, "post", {key: part.view(each[key].shape)})
        return {key: together.numpy() for key, together in memory.items()}

    def _fact(self, state: dict[str, Any], p: Tensor, clipped: bool) -> Fact:
        m, v = state["exp_avg"], state["exp_avg_sq"]
        memory = {key: state[f"post_{key}"] for key in self.memory} if clipped else {}
        return Fact(p, m, v, (p.data_ptr(), m.data_ptr(), v.data_ptr()), memory)

    def _make_jobs(self, sizes: NDArray[np.int64]) -> Jobs:
        jobs = np.zeros(len(self.owner), JOB)
        places = np.array([fact.places for fact in self.facts], np.int64).reshape(-1, 3)
        for name, column in zip("pmv", places.T, strict=True):
            jobs[name] = column[self.owner] + self.offset
        jobs["n"] = sizes[self.owner]
        return jobs

    def set_step(self, optimizer: "Staged", gradients: list[Tensor], group: Group) -> None:
        """Count the step, and put down its gradients and constants."""
        steps = [optimizer.state[fact.p]["step"] for fact in self.facts]
        torch._foreach_add_(steps, 1)
        counts = [step.item() for step in steps]
        if len(set(counts)) == 1:
            self.jobs["adam"] = np.array(_constants(counts[0], group), ADAM)
        else:
            self.jobs["adam"] = np.array([_constants(count, group) for count in counts], ADAM)[self.owner]
        self.jobs["g"] = np.array([g.data_ptr() for g in gradients], np.int64)[self.owner] + self.offset

    def ends(self, q: float | None) -> tuple[NDArray[np.bool_], NDArray[np.int32], NDArray[np.int32]]:
        """Whether there is a guess, and the bit patterns between which to look; no upper one where little is above."""
        there = (self.value > 0) & (self.value < math.inf) & (q is not None)
        value = np.where(there, self.value, 0).astype(np.float32)
        low, high = ((side.astype(np.float32) * value).view(np.int32) for side in (1 - self.width, 1 + self.width))
        open_above = q is not None and q >= OPEN
        top = np.int32(LARGEST)
        return there, np.where(there, low, top), np.where(there & (not open_above), high, top)

    def follow(self, quantiles: NDArray[np.float64], missed: NDArray[np.bool_]) -> None:
        """Look four times as far as it moved of late: a narrow bracket keeps little where many entries are alike."""
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = np.abs(quantiles / self.value - 1)
        moved = np.where(missed | ~np.isfinite(moved), WIDTH, moved)
        self.width = np.clip(np.maximum(4 * moved, 0.9 * self.width), _NARROWEST, WIDTH)
        self.value = quantiles


def applies(p: Tensor, state: dict[str, Any], group: Group) -> bool:
    """Whether the fast path knows this case: contiguous fp32 on a CPU, no amsgrad, a clip by quantile or number."""
    if group["amsgrad"] or not p.numel():
        return False
    if not all(plain(t) for t in (p, p.grad, state["exp_avg"], state["exp_avg_sq"])):
        return False
    if not clips(group, "post", p):
        return True
    clip: Clip = group["post"]
    count, n = _matrices(p, group)
    known = clip.operator in OPERATORS and hasattr(clip.rule, "level") and not clip.preserve_rms
    cut = group["blocks"] > 1 and group["transposed"]  # then a matrix is no contiguous piece of memory
    return known and not cut and (count == 1 or n >= _SMALL)


def plain(t: Tensor | None) -> bool:
    """Contiguous fp32 on a CPU."""
    if t is None or type(t) not in (Tensor, torch.nn.Parameter):
        return False
    return t.is_cpu and t.dtype is torch.float32 and t.layout is torch.strided and t.is_contiguous()


def _matrices(p: Tensor, group: Group) -> tuple[int, int]:
    """How many matrices there are in `p`, and how many entries each has."""
    count = math.prod(layout_of(group).shape(p.shape)[:-2])
    return count, p.numel() // max(count, 1)


def _constants(step: float, group: Group) -> tuple[float, ...]:
    """u = m / (a sqrt(v) + b) with torch's bias corrections; as `ADAM`."""
    beta1, beta2 = group["betas"]
    first, lr = 1 - beta1**step, float(group["lr"])
    a = first / math.sqrt(1 - beta2**step)
    decay = 1 - lr * group["weight_decay"]
    sign = -1.0 if group["maximize"] else 1.0
    return (sign, beta1, 1 - beta1, beta2, 1 - beta2, a, group["eps"] * first, decay, lr)
