"""The fused step of a param group, whichever method it follows: the plan, the thresholds, and what the kernel takes.

The step is the plain path's in one pass over memory, or two. Two are needed where the threshold is a quantile of this
step's direction. The first then keeps what lies around the last step's quantile and selects from that, which is exact.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from operator import is_
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...arrays import Array, cast, namespace
from ...auto_threshold import Auto
from ...clip import Clip
from ...dtensor import is_dtensor, is_sliced, local_shard, local_shards, shard_groups
from ...thresholds import QuantileRule, State, Step
from ..capture import is_capturing
from ..groups import Group, ParameterState, clips, layout_of
from .backends import backend_of
from .binding import (
    READABLE,
    HeldTensors,
    are_plain,
    as_plain,
    bind,
    is_half_of,
    is_plain,
    is_readable,
    take_gradients,
    takes_gradient,
)
from .matrix_rows import MatrixRows, matrix_rows
from .plan import (
    OPERATORS,
    AdamConstants,
    Backend,
    DirectionKind,
    KernelPlan,
    MomentumConstants,
    ThresholdSource,
)
from .rule_memory import gather_memory, release_memory
from .scaled_matrices import ScaledBackend, ScaledMatrices

_OPTIONS = ("clip_vectors", "blocks", "transposed", "flatten", "nonfinite", "fp32_state", "capturable")


class FusedGroup(ABC):
    """The fused step of one param group. The plan is made at the first step and again when what it rests on changes."""

    stage: str  # whose clip the kernel applies
    options: ClassVar[tuple[str, ...]] = ()  # further options that the plan depends on

    def __init__(self) -> None:
        self.rest: list[Tensor] = []
        self._waiting: list[Tensor] = []  # those of the rest whose gradient the kernel could not read
        self._params: list[Tensor] = []
        self._options: list[Any] = []
        self.taken: list[int] = []
        self._states: list[ParameterState] = []
        self._plan = _empty_plan()
        self._held = HeldTensors([])
        self._backend: Backend | None = None
        self._memory: State = {}
        self._scaled: ScaledBackend | None = None  # where the clip is `Auto`'s
        self._rule: QuantileRule | None = None  # where there is something to clip
        self._ones: Array = np.zeros(0)  # (clipped, 1, 1), in the library in which the rule computes
        self._in_graphs: list[Any] = []  # captured graphs work in the memory of these

    def serves(self, params: list[Tensor], weights: list[Tensor], states: list[ParameterState], group: Group) -> bool:
        """Tell whether the plan of the last step serves this one: nothing that it rests on has changed."""
        if len(params) != len(self._params) or not all(map(is_, params, self._params)):
            return False
        if not all(map(is_, self._plan_options(group), self._options)):
            return False
        if any(takes_gradient(p, group) for p in self._waiting):
            return False
        taken, own = [params[i] for i in self.taken], [states[i] for i in self.taken]
        if not take_gradients(taken, self._held.shapes, group):
            return False
        here = local_shards([weights[i] for i in self.taken])
        if not self._held.hold(local_shards(taken), here, own):
            return False
        self._states = own  # which may be other objects with the same tensors
        return True

    def bind(
        self, params: list[Tensor], weights: list[Tensor], states: list[ParameterState], group: Group
    ) -> list[int]:
        """Make sure that the plan is that of these parameters; returns the positions of those it steps."""
        if not self.serves(params, weights, states, group):
            if is_capturing():
                raise RuntimeError(
                    "the fused step is not made for these parameters and options yet, which a CUDA graph cannot "
                    "capture: take a step with the same ones, and with gradients for the same parameters, before"
                )
            release_memory(self._states, self._plan.bindings)
            self._params, self._options = params, self._plan_options(group)
            self._make_plan(weights, states, group)
            self._held = HeldTensors(self._plan.bindings)
            self._states = [states[i] for i in self.taken]
        return self.taken

    @property
    def takes_half(self) -> bool:
        """Whether the kernel reads half gradients, and writes the half parameters whose fp32 copies are its weights."""
        return self._backend is not None and self._plan.kind in self._backend.takes_half

    @property
    def clips_gradients(self) -> bool:
        """Whether the kernel takes the gradients as they are, and clips them itself."""
        return False

    def hit_share(self) -> float:
        """Return the share of matrices whose quantile lay in its bracket in the last step; the host waits for it."""
        hits = self._backend.hits(self._plan) if self._backend is not None else np.zeros(0)
        return float(hits.sum()) / max(len(hits), 1)

    def step_(self, gradients: list[Tensor], group: Group) -> None:
        """Step the bound parameters with these gradients, one for each."""
        plan = self._plan
        if self._backend is None or not plan.bindings:
            return
        plan.gradients = self._plain(gradients)
        plan.constants = self._constants(group)
        when = Step(lr=group["lr"] if plan.is_capturable else float(group["lr"]))
        if self._rule is not None:
            self._set_thresholds(self._rule, when)
        if is_capturing():
            self._in_graphs.append((self._backend, self._scaled, self._memory, self._ones))
        quantiles = self._backend.run(plan)
        if self._scaled is not None:
            self._scaled.step_(plan)
        if self._rule is not None and self._awaits(self._rule):
            self._finish(self._rule, when, quantiles)
        plan.gradients = []  # else they would outlive `zero_grad`

    def _plain(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return the gradients as the kernel reads them; copies only of those that are not so."""
        half, devices = self.takes_half, {each.w.device for each in self._plan.bindings}
        plain = are_plain(gradients, self._held.shapes, READABLE if half else (torch.float32,))
        if plain and {g.device for g in gradients} == devices:
            return gradients
        pairs = zip(gradients, self._plan.bindings, strict=True)
        return [as_plain(local_shard(g), each.w, half) for g, each in pairs]

    @abstractmethod
    def _kind(self, group: Group) -> DirectionKind:
        """Return how the directions of this group are made."""

    @abstractmethod
    def _buffers(self, group: Group) -> tuple[str, ...]:
        """Return the keys in the optimizer's state of the buffers that the kernel works on."""

    @abstractmethod
    def _constants(self, group: Group) -> Sequence[AdamConstants | MomentumConstants]:
        """Return the numbers of this step, one tuple for each bound parameter or a single one for all."""

    def _supports(self, p: Tensor, w: Tensor, state: ParameterState, group: Group, backend: type[Backend]) -> bool:
        """Tell whether a backend knows this case: contiguous fp32, whole or in slices, a clip by quantile or number."""
        if self._kind(group) not in backend.kinds or not w.numel():
            return False
        if is_dtensor(w) and not (is_sliced(w) and group["blocks"] == 1):
            return False
        here, own = local_shard(w), local_shard(p)
        buffers = [local_shard(state.get(key)) for key in self._buffers(group)]
        if not is_readable(here) or not is_plain(here):
            return False
        if any(t is None or not is_plain(t) or t.device != here.device for t in buffers):
            return False
        if not takes_gradient(p, group) or (p is not w and not is_half_of(own, here)):
            return False
        return self._knows_clip(w, group, backend)

    def _knows_clip(self, w: Tensor, group: Group, backend: type[Backend]) -> bool:
        """Tell whether a backend can apply the stage's clip, if there is one, to the matrices of `w`."""
        if not clips(group, self.stage, w):
            return True
        clip: Clip = group[self.stage]
        if clip.operator not in OPERATORS or not layout_of(group).is_contiguous():
            return False
        if type(clip.rule) is Auto:  # a class made from it may decide otherwise
            knows_stage = backend.scaled is not None and self.stage in backend.scaled.stages
            return knows_stage and self._kind(group) == DirectionKind.ADAM and not is_dtensor(w)
        if not isinstance(clip.rule, QuantileRule):
            return False
        # The sums of squares are those of one process.
        return not clip.preserve_rms or (self._kind(group) in backend.preserves_rms and not shard_groups(w))

    def _rows(self, w: Tensor, group: Group) -> MatrixRows:
        """Return the matrices of a parameter that are worked on one by one."""
        return matrix_rows(w, layout_of(group) if clips(group, self.stage, w) else None)

    def _sorted(self, supported: list[int], weights: list[Tensor], group: Group) -> list[int]:
        """Return the positions of the supported parameters in the order of the plan, the clipped ones first."""
        return sorted(supported, key=lambda i: not clips(group, self.stage, weights[i]))

    def _plan_options(self, group: Group) -> list[Any]:
        """Return the values that the plan depends on, to be compared by identity."""
        return [self._kind(group), *(group[name] for name in (self.stage, *_OPTIONS, *self.options))]

    def _make_plan(self, weights: list[Tensor], states: list[ParameterState], group: Group) -> None:
        """Put the matrices of all supported parameters into one table, the clipped ones first."""
        device, backend = backend_of(weights)
        supported: list[int] = []
        over: list[Any] = []
        if backend is not None:
            here = [i for i, w in enumerate(weights) if w.device == device]
            supported = [i for i in here if self._supports(self._params[i], weights[i], states[i], group, backend)]
            supported, over = _of_same_processes(supported, weights, group, self.stage, backend)
        chosen = set(supported)
        self.rest = [p for i, p in enumerate(self._params) if i not in chosen]
        self._waiting = [p for p in self.rest if not takes_gradient(p, group)]
        self.taken = self._sorted(supported, weights, group)
        self._backend, self._memory, self._plan, self._rule, self._scaled = None, {}, _empty_plan(), None, None
        if backend is None or not self.taken:
            return
        taken = [weights[i] for i in self.taken]
        rows = [self._rows(w, group) for w in taken]
        counts = [len(each.size) for each in rows]
        owner = np.repeat(np.arange(len(taken)), counts)
        clipped = [w for w in taken if clips(group, self.stage, w)]
        self._states = [states[i] for i in self.taken]
        self._memory, views = gather_memory(self.stage, clipped, self._states, counts, group, backend.uses_torch)
        keys, own = self._buffers(group), [local_shard(self._params[i]) for i in self.taken]
        parts = zip(own, map(local_shard, taken), self._states, views, strict=True)
        bindings = [bind(p, w, state, keys, memory) for p, w, state, memory in parts]
        start, size = (np.concatenate(column) for column in ([r.start for r in rows], [r.size for r in rows]))
        self._plan = KernelPlan(
            bindings, owner, start, size, sum(counts[: len(clipped)]), over=over, kind=self._kind(group)
        )
        self._plan.is_capturable = backend.uses_torch and group["capturable"]
        self._plan.total = np.repeat([each.total for each in rows], counts)[: self._plan.clipped]
        if clipped:
            clip: Clip = group[self.stage]
            self._plan.operator, self._plan.preserve_rms = OPERATORS[clip.operator], clip.preserve_rms
            if isinstance(clip.rule, QuantileRule):
                self._set_rule(clip.rule, device if backend.uses_torch else None)
        self._plan.propagate = group["nonfinite"] == "propagate"
        if clipped and self._rule is None:
            self._plan.scaled = self._scaled_matrices(group, [clipped[i] for i in owner[: self._plan.clipped]])
        self._backend = backend(self._plan)
        if self._plan.is_scaled:
            assert backend.scaled is not None
            self._scaled = backend.scaled(self._plan, self._backend)

    def _scaled_matrices(self, group: Group, parameters: list[Tensor]) -> ScaledMatrices:
        """Describe the clipped matrices, one of each of these parameters, to what clips by rows and columns."""
        clip, layout = group[self.stage], layout_of(group)
        sides = [(1, 1, *layout.shape(w.shape)) for w in parameters]  # a vector is a row
        shapes = [(each[-2], each[-1]) for each in sides]
        return ScaledMatrices(clip.rule, clip.operator, self._memory, shapes, layout.transposed, self.stage == "grad")

    def _set_rule(self, rule: QuantileRule, device: torch.device | None) -> None:
        """Let this rule make the thresholds, on a device where its memory is there."""
        self._rule, self._plan.q = rule, rule.level
        self._ones = np.ones((self._plan.clipped, 1, 1), np.float32)
        if device is not None and (rule.has_memory or self._plan.is_capturable):
            self._ones = torch.from_numpy(self._ones).to(device)

    def _set_thresholds(self, rule: QuantileRule, when: Step) -> None:
        """Write down each clipped matrix's threshold, as far as the rule can tell it before the data is seen."""
        plan, ones = self._plan, self._ones
        known = _per_matrix(rule.threshold_is_known(self._memory), ones) != 0
        plan.multiple = plan.threshold = _per_matrix(rule.threshold(ones, self._memory, when)[0], ones)
        later = ThresholdSource.AWAITED if self._awaits(rule) else ThresholdSource.PROPORTIONAL
        plan.source = namespace(ones).where(known, int(ThresholdSource.KNOWN), int(later))

    def _awaits(self, rule: QuantileRule) -> bool:
        """Tell whether the rule makes thresholds once the walk is over: to remember quantiles, or on the device.

        A clip that keeps the root mean square moves no matrix in the first walk.
        """
        later = rule.level is not None or self._plan.preserve_rms
        return rule.has_memory or (later and isinstance(self._ones, Tensor))

    def _finish(self, rule: QuantileRule, when: Step, quantiles: Array) -> None:
        """Give the quantiles to the rule, and move the matrices that waited for their threshold."""
        asked = cast(quantiles, self._ones.dtype).reshape(-1, 1, 1)
        thresholds, memory = rule.threshold(asked, self._memory, when)
        assert self._backend is not None
        self._backend.move(self._plan, _per_matrix(thresholds, self._ones))
        for key, value in memory.items():
            self._memory[key][...] = value


def _of_same_processes(
    places: list[int], weights: list[Tensor], group: Group, stage: str, backend: type[Backend]
) -> tuple[list[int], list[Any]]:
    """Leave out clipped parameters whose quantiles need other processes than the others'; returns also these groups.

    A threshold that does not depend on the data needs none.
    """
    clipped = [i for i in places if clips(group, stage, weights[i])]
    if not any(is_dtensor(weights[i]) for i in clipped) or group[stage].rule.level is None:
        return places, []
    groups = {i: shard_groups(weights[i]) for i in clipped}
    over = next((each for each in groups.values() if each), []) if backend.spans_processes else []
    left_out = {i for i in clipped if groups[i] != over}
    return [i for i in places if i not in left_out], over


def _per_matrix(x: Any, ones: Array) -> Array:
    """Return `x`, one value or one per matrix, as a vector of one per matrix, in the library of `ones`."""
    if isinstance(ones, np.ndarray):
        return np.broadcast_to(np.asarray(x, np.float64).ravel(), (len(ones),))
    x = x if isinstance(x, Tensor) else torch.full_like(ones, float(x))
    return x.reshape(-1).expand(len(ones))


def _empty_plan() -> KernelPlan:
    none = np.zeros(0, np.int64)
    return KernelPlan([], none, none, none, 0)
