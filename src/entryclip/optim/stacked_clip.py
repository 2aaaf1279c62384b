"""Clip the parameters of a batch: matrices with equally many entries in one stack, with one selection for all.

The clip of one parameter, `stages.apply_clip`, is the specification: a stack gives the same bits on a CPU. What does
not fit into a stack (other operators and rules, entries that are not finite) is clipped one by one. DTensors stay
apart, too, but the processes exchange the counts for the quantiles of all of them at once.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..arrays import on_device
from ..clip import Clip
from ..dtensor import apply_entrywise, is_dtensor, is_sliced, match_norms, shard_groups
from ..operators import ENTRYWISE
from ..quantiles.sharded import ranked_shards
from ..thresholds import QuantileRule, State, Step
from .capture import keep_memory_
from .device_shrinkage import shrink_stacks_on_device, shrinks_on_device
from .finite import propagated, seen_finite
from .foreach import copy_all_, is_ordinary
from .groups import Group, ParameterState, clips, layout_of
from .stages import apply_clip, kept_memory


@dataclass
class _Stack:
    """Parameters whose matrices all have as many entries: their positions, and how many matrices each one has."""

    entries: int
    places: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def rows(self, xs: list[Tensor]) -> Tensor:
        """Return all matrices as rows, (matrices, entries): a copy, unless there is a single parameter."""
        parts = [xs[i].reshape(-1, self.entries) for i in self.places]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def spread(self, rows: Tensor, xs: list[Tensor]) -> None:
        """Put the rows, as the tensors that they came from were shaped, in the places of these."""
        for i, part in zip(self.places, torch.split(rows, self.counts), strict=True):
            xs[i] = part.view(xs[i].shape)


def clip_all_(
    stage: str, params: list[Tensor], xs: list[Tensor], states: list[ParameterState], group: Group, *, owned: bool
) -> list[Tensor]:
    """Return each `x` as the stage's clip leaves it, and keep the rule's memory in the states, where it is saved.

    With `owned`, the memory of each `x` is free to be written to.
    """
    result = list(xs)
    stacks = _stacks(stage, params, xs, group)
    if stacks and group["nonfinite"] == "propagate" and shrinks_on_device(group[stage], xs[stacks[0].places[0]]):
        _shrink_(stage, stacks, result, states, group)
    else:
        stacks = [
            stack for stack in stacks if len(stack.places) > 1 and _clip_stack_(stage, stack, result, states, group)
        ]
    done = {i for stack in stacks for i in stack.places}
    for places in _sharded_alike(stage, params, xs, group):
        _clip_shards_(stage, places, result, states, group)
        done.update(places)
    for i, (p, x) in enumerate(zip(params, xs, strict=True)):
        if i not in done and clips(group, stage, p):
            result[i], memory = apply_clip(stage, p, x, states[i], group, owned=owned)
            keep_memory_(states[i], stage, memory, in_place=group["capturable"])
    return result


def _stacks(stage: str, params: list[Tensor], xs: list[Tensor], group: Group) -> list[_Stack]:
    """Sort the parameters that can be stacked by the number of entries of their matrices."""
    clip, layout = group[stage], layout_of(group)
    if len(params) < 2 or not (clip and _stacks_with(clip)) or not layout.is_contiguous():
        return []
    if clip.preserve_rms and layout.transposed:
        return []  # the sums of squares would be taken in another order
    found: dict[int, _Stack] = {}
    for i, (p, x) in enumerate(zip(params, xs, strict=True)):
        if clips(group, stage, p) and x.numel() and is_ordinary(x) and (x.is_contiguous() or on_device(x)):
            count = math.prod(layout.shape(x.shape)[:-2])
            stack = found.setdefault(x.numel() // count, _Stack(x.numel() // count))
            stack.places.append(i)
            stack.counts.append(count)
    return list(found.values())


def _stacks_with(clip: Clip) -> bool:
    """Tell whether a clip treats the matrices of a stack as it treats each alone, whatever their sides are."""
    return clip.operator in ENTRYWISE and isinstance(clip.rule, QuantileRule)


def _shrink_(stage: str, stacks: list[_Stack], xs: list[Tensor], states: list[ParameterState], group: Group) -> None:
    """Shrink all stacks on a device, with one computation of the thresholds."""
    clip, places = group[stage], [i for stack in stacks for i in stack.places]
    memory = _join(stage, [xs[i] for i in places], [states[i] for i in places], group)
    flat = {key: value[:, 0] for key, value in memory.items()}
    shrunk, flat = shrink_stacks_on_device([stack.rows(xs) for stack in stacks], clip, flat, Step(lr=group["lr"]))
    for stack, rows in zip(stacks, shrunk, strict=True):
        stack.spread(rows, xs)
    counts = [count for stack in stacks for count in stack.counts]
    _part_(stage, flat, counts, [xs[i] for i in places], [states[i] for i in places], group)


def _clip_stack_(stage: str, stack: _Stack, xs: list[Tensor], states: list[ParameterState], group: Group) -> bool:
    """Clip one stack; False, with nothing done, where an entry on the host is not finite."""
    clip, mine = group[stage], [states[i] for i in stack.places]
    matrices = stack.rows(xs)[:, None]
    finite = seen_finite(matrices)
    if not finite and not on_device(matrices):
        return False
    memory = _join(stage, [xs[i] for i in stack.places], mine, group)
    y, memory = clip.update_(matrices, memory, Step(lr=group["lr"]), finite=finite)
    if not finite and group["nonfinite"] == "propagate":
        y = propagated(y, matrices)
    stack.spread(y[:, 0], xs)
    _part_(stage, memory, stack.counts, [xs[i] for i in stack.places], mine, group)
    return True


def _sharded_alike(stage: str, params: list[Tensor], xs: list[Tensor], group: Group) -> list[list[int]]:
    """Return the positions of DTensors whose quantiles can be found together, one list for those of equal processes."""
    clip = group[stage]
    if not any(map(is_dtensor, xs)) or not (clip and _stacks_with(clip)) or layout_of(group).blocks > 1:
        return []  # a block may lie across several shards
    found: dict[tuple[int, ...], list[int]] = {}
    for i, (p, x) in enumerate(zip(params, xs, strict=True)):
        if clips(group, stage, p) and is_dtensor(x) and x.numel() and is_sliced(x):
            found.setdefault(tuple(map(id, shard_groups(x))), []).append(i)
    return list(found.values())


def _clip_shards_(stage: str, places: list[int], xs: list[Tensor], states: list[ParameterState], group: Group) -> None:
    """Clip DTensors with one exchange of counts for the quantiles of all their matrices."""
    clip, layout, mine = group[stage], layout_of(group), [states[i] for i in places]
    before, matrices = [xs[i] for i in places], [layout.matrices(xs[i]) for i in places]
    counts = [math.prod(m.shape[:-2]) for m in matrices]
    quantiles = ranked_shards(matrices, clip.rule.level)
    threshold, memory = clip.rule.threshold(quantiles, _join(stage, before, mine, group), Step(lr=group["lr"]))
    for i, m, part in zip(places, matrices, torch.split(threshold, counts), strict=True):
        y = apply_entrywise(clip.operator, m, part.reshape(*m.shape[:-2], *(1 for _ in m.shape[-2:])))
        y = match_norms(y, m) if clip.preserve_rms else y
        y = propagated(y, m) if group["nonfinite"] == "propagate" else y
        xs[i] = layout.restore(y, xs[i].shape)
    _part_(stage, memory, counts, before, mine, group)


def _join(stage: str, xs: list[Tensor], states: list[ParameterState], group: Group) -> State:
    """Return the rule's memory of all matrices of these parameters, (matrices, 1, 1) for each key."""
    clip, layout = group[stage], layout_of(group)
    if not clip.has_memory:
        return {}
    fresh: dict[torch.Size, State] = {}
    for x in xs:
        if x.shape not in fresh:
            fresh[x.shape] = clip.init(layout.matrices(x))
    own = [kept_memory(stage, state, fresh[x.shape]) for x, state in zip(xs, states, strict=True)]
    return {key: torch.cat([each[key].reshape(-1, 1, 1) for each in own]) for key in own[0]}


def _part_(
    stage: str, memory: State, counts: list[int], xs: list[Tensor], states: list[ParameterState], group: Group
) -> None:
    """Give each parameter its part of the rule's memory: a tensor of its own, as it is saved."""
    layout = layout_of(group)
    for key, value in memory.items():
        name, parts = f"{stage}_{key}", torch.split(value, counts)
        shapes = [(*layout.shape(x.shape)[:-2], *(1 for _ in x.shape[-2:])) for x in xs]
        for state, part, shape in zip(states, parts, shapes, strict=True):
            if name not in state or state[name].shape != shape:
                state[name] = part.new_empty(shape)
        copy_all_(
            [state[name] for state in states], [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        )
