"""What a clip's rule remembers of the matrices of a fused step, in one array for all of them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...thresholds import State
from ..groups import Group, ParameterState, layout_of
from ..stages import stage_memory
from .binding import ParameterBinding


def gather_memory(
    stage: str,
    clipped: list[Tensor],
    states: list[ParameterState],
    counts: list[int],
    group: Group,
    uses_torch: bool,
) -> tuple[State, list[State]]:
    """Join the rule's memory of all clipped matrices into one array per key; returns also each parameter's views.

    clipped    the parameters that are clipped, the first of those that `states` and `counts` are of
    counts     how many matrices each parameter has

    The views go into the optimizer's state. The arrays are those of the backend: the rules are the same in all
    libraries.
    """
    views: list[State] = [{} for _ in states]
    clip, together = group[stage], {}
    if not clipped or not clip.has_memory:
        return {}, views
    layout = layout_of(group)
    own = [stage_memory(stage, layout.matrices(w), state, clip) for w, state in zip(clipped, states, strict=False)]
    batches = [max(len(layout.shape(w.shape)) - 2, 0) for w in clipped]
    for key in own[0]:
        # One row for each matrix, or for each parameter where the rule keeps a single number for it.
        numbers = [1] * len(own) if own[0][key].ndim == 0 else counts[: len(clipped)]
        rows = zip(own, numbers, batches, strict=True)
        joined = torch.cat([each[key].reshape(number, *each[key].shape[batch:]) for each, number, batch in rows])
        for view, state, each, part in zip(views, states, own, torch.split(joined, numbers), strict=False):
            view[f"{stage}_{key}"] = state[f"{stage}_{key}"] = part.view(each[key].shape)
        together[key] = joined if uses_torch else joined.numpy()
    return together, views


def release_memory(states: Sequence[ParameterState], bindings: Sequence[ParameterBinding]) -> None:
    """Give each parameter of an old plan a copy of its memory: a view would keep the memory of all of them."""
    for state, each in zip(states, bindings, strict=True):
        for key, view in each.memory.items():
            kept = state.get(key)
            if kept is not None and kept is view:
                state[key] = kept.clone()
