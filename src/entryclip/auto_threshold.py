"""`Auto`: a clip without a knob. Whether to clip, and where, is decided from the entries themselves.

The entries are divided by the scales of their rows and columns (log_scales.py), since a matrix of Gaussian entries
whose rows differ in size looks heavy-tailed and is not. Of what is left a sketch is kept over the steps, and from it
the threshold that lets the most signal through for its noise (efficiency.py). Where that gains too little, there is no
clip, only a guard: a bound that a Gaussian entry passes once in a thousand matrices.

A clip also makes small entries smaller: on average by its slope E[f']. The output is divided by that, so that a small
signal passes as it is, and a learning rate that was right without the clip stays right.
"""

import math
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch

from .arrays import Array, cast, cast_like, check_floating, constant, is_number, namespace, on_host, widen
from .dtensor import all_reduce, from_local, is_dtensor, local_slices, resolve_placements, shard_groups
from .efficiency import BINS, Operator, best_threshold, log_variance, sketch
from .log_scales import GAUSSIAN_VARIANCE, NARROW, LogScales, log_scales
from .operators import hard_clip
from .thresholds import State, Step

TIE = 0.02  # of thresholds whose gains differ by less than this share, the largest is taken
ENOUGH = 4096  # entries in a sketch below which its gain may be chance; Gaussian ones then reach 1.02 in 1 of 10^4
FEW = 256  # entries in a sketch below which it says nothing of their variance
CEILING = 12.0  # an entry counts for the scales as if it were at most 2^12 times the typical one of the step before
_LOOK = 1 << 16  # entries of a matrix that a step adds to the sketch, about: rows in turn


class Decision(NamedTuple):
    """What is to be done with each matrix at this step, in the unit of its entries' scales; arrays (..., 1, 1)."""

    clips: Array  # whether the operator is applied; else the guard
    threshold: Array  # the operator's, or the guard's
    slope: Array  # E[f'], by which the operator's output is divided; 1 for the guard


@dataclass(frozen=True)
class Auto:
    """A threshold rule that decides by itself: `Clip(smooth_shrinkage, Auto())`, or `auto()` for short.

    margin         clip where that is worth a batch so many times larger, against the guard alone
    beta           how much of the sketch is kept from step to step
    false_alarms   the guard's rate: how often per matrix and step it touches Gaussian noise

    >>> from entryclip.clip import auto
    >>> x = torch.randn(200, 200, generator=torch.Generator().manual_seed(0))
    >>> clip = auto()
    >>> y, state = clip.update(x, clip.init(x))
    >>> bool((y == x).all())
    True
    >>> x[3, 5] = 1e6
    >>> y, state = clip.update(x, state)
    >>> [tuple(i) for i in (y != x).nonzero().tolist()], round(float(y[3, 5]))
    ([(3, 5)], 7)
    """

    margin: float = 1.1
    beta: float = 0.98
    false_alarms: float = 1e-3

    def __post_init__(self) -> None:
        if not (is_number(self.margin) and 1 <= self.margin < math.inf):
            raise ValueError(f"margin must be a finite number >= 1, got {self.margin!r}")
        if not (is_number(self.beta) and 0 <= self.beta < 1):
            raise ValueError(f"beta must be a number in [0, 1), got {self.beta!r}")
        if not (is_number(self.false_alarms) and 0 < self.false_alarms < 1):
            raise ValueError(f"false_alarms must be a number in (0, 1), got {self.false_alarms!r}")

    @property
    def has_memory(self) -> bool:
        return True

    def init(self, x: Array) -> State:
        """Return the state before the first step: for each matrix an empty sketch and no level; a count of steps."""
        xp = check_floating(x)
        place = {"device": x.device} if xp is torch else {}
        return {
            "sketch": xp.zeros((*x.shape[:-2], BINS), dtype=xp.float32, **place),
            "level": xp.full((*x.shape[:-2], 1, 1), float("inf"), dtype=xp.float32, **place),
            "looks": xp.zeros((), dtype=xp.float32, **place),
        }

    def __call__(self, x: Array, state: State | None = None, step: Step | None = None) -> tuple[Array, State]:
        raise TypeError("Auto needs the operator to decide: use it in a Clip, as Clip(smooth_shrinkage, Auto())")

    def clip(self, x: Array, operator: Operator, state: State) -> tuple[Array, State]:
        """Clip each matrix of `x` as its entries call for, and return it with the state for the next step."""
        check_floating(x)
        if 0 in x.shape:
            return x + 0, state
        if x.ndim < 2:
            y, state = self.clip(x.reshape(1, -1), operator, state)
            return y.reshape(x.shape), state
        x = resolve_placements(x) if is_dtensor(x) else x
        scales = log_scales(x, *expected(state))
        own, local = scales.local(x), x.to_local() if is_dtensor(x) else x
        new = _sketch_of_rows(x, local, own, state["looks"])
        seen, state = self.follow(new, scales, tuple(x.shape[-2:]), state)
        decision = self.decide(seen, operator, tuple(x.shape[-2:]))
        if is_dtensor(x):
            batch = local_slices(x)[:-2]
            decision = Decision(*(each[batch] for each in decision))
            return from_local(_applied(local, operator, decision, own), x), state
        return _applied(x, operator, decision, own), state

    def threshold(self, x: Array, operator: Operator, state: State) -> Array:
        """Return the threshold of every entry of `x`, an array that is not a DTensor: that of the clip or the guard."""
        matrix = x if x.ndim > 1 else x.reshape(1, -1)
        shape, scales = tuple(matrix.shape[-2:]), log_scales(matrix, *expected(state))
        new = _sketch_of_rows(matrix, matrix, scales, state["looks"])
        decision = self.decide(self.follow(new, scales, shape, state)[0], operator, shape)
        return (decision.threshold * scales.product()).reshape(x.shape)

    def decide(self, seen: Array, operator: Operator, shape: tuple[int, int]) -> Decision:
        """Decide from sketches (..., 256) of matrices of this shape."""
        xp = namespace(seen)
        guard = gaussian_guard(*shape, self.false_alarms)
        best = best_threshold(seen, operator, TIE, guard)
        clips = (best.gain > self.margin) & (seen.sum(-1) >= ENOUGH) & (not 1 < min(shape) < NARROW)
        threshold = xp.where(clips, best.threshold, constant(guard, seen))
        slope = xp.where(clips, best.slope, constant(1.0, seen))
        return Decision(*(each[..., None, None] for each in (clips, threshold, slope)))

    def follow(self, new: Array, scales: LogScales, shape: tuple[int, int], state: State) -> tuple[Array, State]:
        """Return the sketch that this step decides by, that of the steps before, and the state with this one's.

        new     the sketch of this step's entries, (..., 256), from matrices of this shape with these scales
        """
        xp = namespace(new)
        old, count = state["sketch"], scales.count[..., 0]
        first = old.sum(-1)[..., None] == 0
        merged = xp.where((count > 0) & ~scales.outgrown[..., 0], self.beta * old + new, old)
        # A few entries among zeros say nothing of the size that the next step's will have.
        full = 2 * scales.count >= math.prod(shape)
        level = xp.where(full, scales.level, xp.where(scales.count > 0, math.inf, state["level"]))
        return xp.where(first, new, old), {
            "sketch": merged,
            "level": level,
            "looks": state["looks"] + (count > 0).any(),
        }

    def __str__(self) -> str:
        changed = (each for each in fields(self) if getattr(self, each.name) != each.default)
        return ", ".join(["auto", *(f"{each.name}={getattr(self, each.name):g}" for each in changed)])


def gaussian_guard(m: int, n: int, false_alarms: float) -> float:
    """Return what no entry of an m x n matrix of Gaussian noise exceeds, in the unit of its estimated scale.

    It is exceeded in a share `false_alarms` of the matrices, about. Where rows and columns differ, the estimates of
    log_scales.py miss an entry's scale by a random factor exp(d), which is larger for small matrices. The bound allows
    for it: an entry of size y that is taken for y exp(-d) has the exponent y^2/2 + d^2/(2 v), v the variance of d, and
    of all y and d that give the bound the least exponent is that of the tail.

    >>> [round(gaussian_guard(side, side, 1e-3), 1) for side in (16, 64, 256, 4096)]
    [12.0, 7.6, 6.5, 6.6]
    """
    exponent = math.log(2 * m * n / false_alarms)
    z = math.sqrt(2 * exponent)
    for _ in range(4):  # the Gaussian tail beyond z is at most exp(-z^2/2) / (z sqrt(2 pi))
        z = math.sqrt(max(2 * (exponent - math.log(z * math.sqrt(2 * math.pi))), 1.0))
    means = [1 / side for side in (m, n) if side > 1] or [1.0]  # entries of a vector have no scales of their own
    v = GAUSSIAN_VARIANCE * math.log(2) ** 2 * math.fsum(means)
    square = (math.sqrt(1 + 4 * v * z * z) - 1) / (2 * v)
    return math.sqrt(square) * math.exp(v * square)


def expected(state: State) -> tuple[Array, Array]:
    """Return what `log_scales` needs to know, (..., 1, 1): the logarithms' variance and the ceiling.

    The variance is a Gaussian's until `FEW` entries were seen.
    """
    seen = state["sketch"]
    known = log_variance(seen)
    variance = namespace(seen).where(seen.sum(-1) >= FEW, known, constant(GAUSSIAN_VARIANCE, seen))
    return variance[..., None, None], state["level"] + CEILING


def rows_in_turn(m: int, n: int) -> tuple[int, int]:
    """Return every how many rows of an m x n matrix one step adds to the sketch, and how many these are."""
    stride = min(max(m * n // _LOOK, 1), m)
    return stride, m // stride


def _sketch_of_rows(x: Any, local: Array, own: LogScales, looks: Array) -> Array:
    """Return the sketches of the standardised entries, of the rows whose turn it is."""
    xp, m, n = namespace(local), x.shape[-2], x.shape[-1]
    stride, count = rows_in_turn(m, n)
    if is_dtensor(x):
        return _sharded_sketch(x, local, own, looks, stride)
    if stride == 1:
        return sketch(widen(local) / own.product())
    turn = cast(looks, xp.int64 if xp is torch else int) % stride
    place = {"device": local.device} if xp is torch else {}
    rows = xp.arange(count, **place) * stride + turn  # the same number in every step
    if xp is torch:
        picked, scale = local.index_select(-2, rows), own.rows.index_select(-2, rows)
    else:
        picked, scale = local[..., rows, :], own.rows[..., rows, :]
    return sketch(widen(picked) / (scale * own.columns))


def _sharded_sketch(x: Any, local: Any, own: LogScales, looks: Any, stride: int) -> Any:
    """Return the sketches of a DTensor's matrices: each process counts its shard, and the counts are added."""
    *batch, rows, _ = local_slices(x)
    m = x.shape[-2]
    number = torch.arange(m, device=local.device)
    turns = ((number % stride == looks.long() % stride) & (number < m // stride * stride))[rows, None]
    counts = torch.zeros(*x.shape[:-2], BINS, dtype=torch.float32, device=local.device)
    if local.numel():
        counts[tuple(batch)] = sketch(torch.where(turns, widen(local) / own.product(), 0.0))
    all_reduce(counts, torch.distributed.ReduceOp.SUM, shard_groups(x))
    return counts


def _applied(x: Array, operator: Operator, decision: Decision, scales: LogScales) -> Array:
    """Apply the operator or the guard to each matrix, at its threshold times the scales of its entries."""
    xp = namespace(x)
    threshold = decision.threshold * scales.product()
    if on_host(x) and not bool(decision.clips.any()):
        return hard_clip(x, cast(threshold, x.dtype))
    clipped = cast_like(operator(widen(x), cast(threshold, widen(x).dtype)) / decision.slope, x)
    if on_host(x) and bool(decision.clips.all()):
        return clipped
    return xp.where(decision.clips, clipped, hard_clip(x, cast(threshold, x.dtype)))
