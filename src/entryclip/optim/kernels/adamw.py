"""AdamW's fused step: the same step as the plain path's in one pass over memory, or two.

Two passes are needed where the threshold is a quantile of this step's update. The first then keeps what lies around
the last step's quantile and selects from that, which is exact.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...arrays import Array, cast, namespace
from ...clip import Clip
from ...dtensor import is_dtensor, is_sliced, local_shard, shard_groups
from ...thresholds import QuantileRule, State, Step
from ..groups import HALF, Group, ParameterState, clips, layout_of
from ..stages import stage_memory
from .backends import backend_for
from .binding import as_plain, bind, is_plain, is_readable
from .matrix_rows import matrix_rows
from .plan import OPERATORS, AdamConstants, Backend, KernelPlan, ThresholdSource

_OPTIONS = ("post", "amsgrad", "clip_vectors", "blocks", "transposed", "flatten", "nonfinite", "fp32_state")


class FusedAdamW:
    """The fused step of one AdamW group. The plan is made at the first step and again when what it rests on changes."""

    def __init__(self) -> None:
        self.rest: list[Tensor] = []
        self._params: list[Tensor] = []
        self._options: list[Any] = []
        self._taken: list[int] = []
        self._states: list[ParameterState] = []
        self._plan = _empty_plan()
        self._backend: Backend | None = None
        self._memory: State = {}
        self._rule: QuantileRule | None = None  # where there is something to clip
        self._ones: Array = np.zeros(0)  # (clipped, 1, 1), in the library in which the rule computes

    def bind(
        self, params: list[Tensor], weights: list[Tensor], states: list[ParameterState], group: Group
    ) -> list[int]:
        """Make sure that the plan is that of these parameters; returns the positions of those it steps."""
        if not self._fits(params, weights, states, group):
            self._release_memory()
            self._params, self._options = params, [group[name] for name in _OPTIONS]
            self._make_plan(weights, states, group)
        self._states = [states[i] for i in self._taken]  # also where a state is another object with the same tensors
        return self._taken

    def step_(self, gradients: list[Tensor], group: Group) -> None:
        """Step the bound parameters with these gradients, one for each."""
        plan = self._plan
        if self._backend is None or not plan.bindings:
            return
        plan.gradients = [as_plain(local_shard(g), each.w) for g, each in zip(gradients, plan.bindings, strict=True)]
        plan.constants = self._constants(group)
        when = Step(lr=float(group["lr"]))
        if self._rule is not None:
            self._set_thresholds(self._rule, when)
        quantiles = self._backend.run(plan)
        if self._rule is not None and self._rule.has_memory:
            self._finish(self._rule, when, quantiles)
        plan.gradients = []  # else they would outlive `zero_grad`

    def _fits(self, params: list[Tensor], weights: list[Tensor], states: list[ParameterState], group: Group) -> bool:
        """Tell whether the plan of the last step serves this one."""
        if len(params) != len(self._params) or any(a is not b for a, b in zip(params, self._params, strict=True)):
            return False
        if any(group[name] is not value for name, value in zip(_OPTIONS, self._options, strict=True)):
            return False
        if any(not _takes_gradient(params[i], group) for i in self._taken):
            return False
        pairs = zip(self._taken, self._plan.bindings, strict=True)
        return all(each.holds(local_shard(weights[i]), states[i]) for i, each in pairs)

    def _make_plan(self, weights: list[Tensor], states: list[ParameterState], group: Group) -> None:
        """Put the matrices of all supported parameters into one table, the clipped ones first."""
        device = next((w.device for w in weights if backend_for(w.device.type)), None)
        backend = backend_for(device.type) if device is not None else None
        supported: list[int] = []
        over: list[Any] = []
        if backend is not None:
            here = [i for i, w in enumerate(weights) if w.device == device]
            knows = group["post"] is None or _knows(group["post"])
            supported = [i for i in here if _supports(self._params[i], weights[i], states[i], group, knows)]
            supported, over = _of_same_processes(supported, weights, group, backend)
        chosen = set(supported)
        self.rest = [p for i, p in enumerate(self._params) if i not in chosen]
        self._taken = sorted(supported, key=lambda i: not clips(group, "post", weights[i]))
        self._backend, self._memory, self._plan, self._rule = None, {}, _empty_plan(), None
        if backend is None or not self._taken:
            return
        taken = [weights[i] for i in self._taken]
        rows = [matrix_rows(w, layout_of(group) if clips(group, "post", w) else None) for w in taken]
        counts = [len(each.size) for each in rows]
        owner = np.repeat(np.arange(len(taken)), counts)
        clipped = [w for w in taken if clips(group, "post", w)]
        self._states = [states[i] for i in self._taken]
        views = self._gather_memory(clipped, counts, group, backend.uses_torch)
        parts = zip(taken, self._states, views, strict=True)
        bindings = [bind(local_shard(w), state, memory) for w, state, memory in parts]
        start, size = (np.concatenate(column) for column in ([r.start for r in rows], [r.size for r in rows]))
        self._plan = KernelPlan(bindings, owner, start, size, sum(counts[: len(clipped)]), over=over)
        self._plan.total = np.repeat([each.total for each in rows], counts)[: self._plan.clipped]
        if clipped:
            rule: QuantileRule = group["post"].rule
            self._rule, self._plan.operator, self._plan.q = rule, OPERATORS[group["post"].operator], rule.level
            self._ones = np.ones((self._plan.clipped, 1, 1), np.float32)
            if backend.uses_torch and rule.has_memory:
                self._ones = torch.from_numpy(self._ones).to(device)
        self._plan.propagate = group["nonfinite"] == "propagate"
        self._backend = backend(self._plan)

    def _gather_memory(self, clipped: list[Tensor], counts: list[int], group: Group, uses_torch: bool) -> list[State]:
        """Join the rule's memory of all clipped matrices into one array per key, and return each parameter's views.

        The views go into the optimizer's state. The arrays are those of the backend: the rules are the same in all
        libraries.
        """
        states = self._states
        views: list[State] = [{} for _ in states]
        if not clipped or not group["post"].has_memory:
            return views
        layout, clip = layout_of(group), group["post"]
        own = [stage_memory("post", layout.matrices(w), state, clip) for w, state in zip(clipped, states, strict=False)]
        for key in own[0]:
            together = torch.cat([each[key].reshape(-1, 1, 1) for each in own])
            parts = torch.split(together, counts[: len(clipped)])
            for view, state, each, part in zip(views, states, own, parts, strict=False):
                view[key] = state[f"post_{key}"] = part.view(each[key].shape)
            self._memory[key] = together if uses_torch else together.numpy()
        return views

    def _release_memory(self) -> None:
        """Give each parameter of the old plan a copy of its memory: a view would keep the memory of all of them."""
        for state, each in zip(self._states, self._plan.bindings, strict=True):
            for key, view in each.memory.items():
                if state.get(f"post_{key}") is view:
                    state[f"post_{key}"] = each.memory[key].clone()

    def _constants(self, group: Group) -> list[AdamConstants]:
        """Count the step of each parameter and return its constants, a single one where all are at the same step."""
        steps = [state["step"] for state in self._states]
        torch._foreach_add_(steps, 1)
        counts = [step.item() for step in steps]
        return [_constants(count, group) for count in (counts[:1] if len(set(counts)) == 1 else counts)]

    def _set_thresholds(self, rule: QuantileRule, when: Step) -> None:
        """Write down each clipped matrix's threshold, as far as the rule can tell it before the data is seen."""
        plan, ones = self._plan, self._ones
        known = _per_matrix(rule.threshold_is_known(self._memory), ones) != 0
        plan.multiple = plan.threshold = _per_matrix(rule.threshold(ones, self._memory, when)[0], ones)
        later = ThresholdSource.AWAITED if rule.has_memory else ThresholdSource.PROPORTIONAL
        plan.source = namespace(ones).where(known, int(ThresholdSource.KNOWN), int(later))

    def _finish(self, rule: QuantileRule, when: Step, quantiles: Array) -> None:
        """Give the quantiles to a rule that remembers, and move the matrices that waited for their threshold."""
        asked = cast(quantiles, self._ones.dtype).reshape(-1, 1, 1)
        thresholds, memory = rule.threshold(asked, self._memory, when)
        assert self._backend is not None
        self._backend.move(self._plan, _per_matrix(thresholds, self._ones))
        for key, value in memory.items():
            self._memory[key][...] = value


def _supports(p: Tensor, w: Tensor, state: ParameterState, group: Group, knows_clip: bool) -> bool:
    """Tell whether a backend knows this case: contiguous fp32, no amsgrad, a clip by quantile or number."""
    if group["amsgrad"] or not w.numel() or (is_dtensor(w) and not (is_sliced(w) and group["blocks"] == 1)):
        return False
    w, m, v = (local_shard(x) for x in (w, state["exp_avg"], state["exp_avg_sq"]))
    if not is_readable(w):
        return False
    if not (is_plain(w) and is_plain(m) and is_plain(v) and w.device == m.device == v.device):
        return False
    if not _takes_gradient(p, group):
        return False
    if not clips(group, "post", w):
        return True
    return layout_of(group).is_contiguous() and knows_clip


def _knows(clip: Clip) -> bool:
    """Tell whether a kernel can apply this clip."""
    return clip.operator in OPERATORS and isinstance(clip.rule, QuantileRule) and not clip.preserve_rms


def _takes_gradient(p: Tensor, group: Group) -> bool:
    """Tell whether the gradient is of the kind that the kernel reads, or that `fp32_state` makes so."""
    g = p.grad
    assert g is not None
    if getattr(g, "placements", None) != getattr(p, "placements", None):  # of DTensors
        return False
    g = local_shard(g)
    if group["fp32_state"] and g.dtype in HALF:
        return type(g) is Tensor and g.layout is torch.strided and g.is_contiguous()
    return is_plain(g)


def _of_same_processes(
    places: list[int], weights: list[Tensor], group: Group, backend: type[Backend]
) -> tuple[list[int], list[Any]]:
    """Leave out clipped parameters whose quantiles need other processes than the others'; returns also these groups.

    A threshold that does not depend on the data needs none.
    """
    level = group["post"].rule.level if group["post"] is not None and _knows(group["post"]) else None
    if level is None or not any(is_dtensor(weights[i]) for i in places):
        return places, []
    clipped = [i for i in places if clips(group, "post", weights[i])]
    groups = {i: shard_groups(weights[i]) for i in clipped}
    over = next((each for each in groups.values() if each), []) if backend.spans_processes else []
    left_out = {i for i in clipped if groups[i] != over}
    return [i for i in places if i not in left_out], over


def _constants(step: float, group: Group) -> AdamConstants:
    """Return the numbers of step `step` (1 at the first), with torch's bias corrections."""
    beta1, beta2 = group["betas"]
    first, lr = 1 - beta1**step, float(group["lr"])
    a = first / math.sqrt(1 - beta2**step)
    decay = 1 - lr * group["weight_decay"]
    sign = -1.0 if group["maximize"] else 1.0
    return AdamConstants(sign, beta1, 1 - beta1, beta2, 1 - beta2, a, group["eps"] * first, decay, lr)


def _per_matrix(x: Any, ones: Array) -> Array:
    """Return `x`, one value or one per matrix, as a vector of one per matrix, in the library of `ones`."""
    if isinstance(ones, np.ndarray):
        return np.broadcast_to(np.asarray(x, np.float64).ravel(), (len(ones),))
    x = x if isinstance(x, Tensor) else torch.full_like(ones, float(x))
    return x.reshape(-1).expand(len(ones))


def _empty_plan() -> KernelPlan:
    none = np.zeros(0, np.int64)
    return KernelPlan([], none, none, none, 0)
