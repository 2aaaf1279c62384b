"""The stages of one parameter's step, as functions of its gradient, its state and its group's options.

    p.grad -> [grad clip] -> moments -> [pre clip] -> msign -> [post clip] -> weight decay, step

`Staged.step` runs them and keeps what they return; `clip_report` runs the same functions and keeps nothing. None of
them changes the state.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ..clip import Clip
from ..dtensor import is_dtensor, map_matrices, shard_like, whole
from ..thresholds import State, Step
from .device_shrinkage import shrink_on_device, shrinks_on_device
from .direction import Direction
from .finite import propagated, seen_finite
from .groups import HALF, Group, ParameterState, clips, layout_of
from .methods.method import Method
from .norm_clip import scaled_gradient


def gradient(p: Tensor, group: Group) -> Tensor:
    """Return the parameter's gradient in the precision of its moments, scaled down by the group's norm rule."""
    g = p.grad
    assert g is not None
    refuse_sparse(g, group)
    g = g.float() if group["fp32_state"] and g.dtype in HALF else g
    return scaled_gradient(g, group.get("norm_factor"))


def refuse_sparse(g: Tensor, group: Group) -> None:
    """Raise torch's class of error where a gradient is sparse."""
    if g.is_sparse:
        raise RuntimeError(f"{group['method']} does not take sparse gradients: use torch.optim.SparseAdam for them")


def apply_clip(
    stage: str, p: Tensor, x: Tensor, state: ParameterState, group: Group, *, owned: bool = False
) -> tuple[Tensor, State]:
    """Return `x` as the group's clip of this stage leaves it, and the rule's memory for the next step.

    With `owned`, the memory of `x` is free to be written to.
    """
    if not clips(group, stage, p):
        return x, {}
    layout = layout_of(group)
    if layout.blocks > 1 and is_dtensor(x):  # a block may lie across several shards
        clipped, memory = apply_clip(stage, p, whole(x), state, group)
        return shard_like(clipped, x), memory
    clip, m = group[stage], layout.matrices(x)
    memory, when = stage_memory(stage, m, state, clip), Step(lr=group["lr"])
    propagate = group["nonfinite"] == "propagate"
    finite = owned and propagate and seen_finite(m)
    if propagate and shrinks_on_device(clip, m):
        y, memory = shrink_on_device(m, clip, memory, when)
    elif owned and (finite or not propagate):
        y, memory = clip.update_(m, memory, when, finite=finite)
    else:
        y, memory = clip.update(m, memory, when)
        y = propagated(y, m) if propagate else y
    return layout.restore(y, x.shape), memory


def stage_memory(stage: str, m: Tensor, state: ParameterState, clip: Clip) -> State:
    """Return what the clip's rule remembers of the matrices `m`; a fresh memory where another rule's is kept."""
    return kept_memory(stage, state, clip.init(m)) if clip.has_memory else {}


def kept_memory(stage: str, state: ParameterState, fresh: State) -> State:
    """Return the memory that a stage's rule left in a parameter's state; `fresh` where there is none of this form."""
    prefix = f"{stage}_"
    kept = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    same = kept.keys() == fresh.keys() and all(kept[key].shape == fresh[key].shape for key in fresh)
    return kept if same else fresh


def orthogonalize(clipped: list[Tensor], group: Group, method: Method) -> list[Tensor]:
    """Return the matrix signs of parameters: in one stack, or each on another process of a mesh.

    Their matrices have one shape or its transpose; those of DTensors have one shape.
    """
    layout = layout_of(group)

    def signs(ms: list[Tensor]) -> list[Tensor]:
        stack = _signs([layout.matrices(m) for m in ms], group, method)
        return [layout.restore(s, m.shape) for s, m in zip(stack, ms, strict=True)]

    return map_matrices(clipped, signs)


def _signs(matrices: list[Tensor], group: Group, method: Method) -> list[Tensor]:
    """Return the matrix signs of batches of matrices, (..., m, n), all taken in one call."""
    if len({m.shape for m in matrices}) == 1:
        return list(method.sign(torch.stack(matrices) if len(matrices) > 1 else matrices[0][None], group))
    # The sign of a transpose is the transpose of the sign, so that tall matrices may lie beside wide ones.
    wide = [m.mT if m.shape[-2] > m.shape[-1] else m for m in matrices]
    flat = [m.reshape(-1, *m.shape[-2:]) for m in wide]
    parts = torch.split(method.sign(torch.cat(flat), group), [len(m) for m in flat])
    signs = [part.reshape(m.shape) for part, m in zip(parts, wide, strict=True)]
    return [s if s.shape == m.shape else s.mT for s, m in zip(signs, matrices, strict=True)]


def stage_inputs(p: Tensor, state: ParameterState, group: Group) -> Iterator[tuple[str, Tensor]]:
    """Yield each clipped stage of a parameter with the tensor that its clip acts on, from what is there now.

    A stage that needs the gradient, or a buffer that no step has made yet, is left out.
    """
    method: Method = group["method"]
    g: Tensor | None = None
    if not p.numel():
        return
    if p.grad is not None and not p.grad.is_sparse:
        g = gradient(p, group)
        if clips(group, "grad", p):
            yield "grad", g
            g, _ = apply_clip("grad", p, g, state, group)
        g = -g if group["maximize"] else g
    if not method.can_direct(g, state, group):
        return
    direction = method.direction(g, state.get("master", p), state, group)
    if method.has_sign and clips(group, "pre", p):
        yield "pre", direction.numerator
    if clips(group, "post", p):
        yield "post", (_signed(p, direction, state, group, method) if method.has_sign else direction).tensor()


def _signed(p: Tensor, direction: Direction, state: ParameterState, group: Group, method: Method) -> Direction:
    """Return the direction after the matrix sign."""
    clipped, _ = apply_clip("pre", p, direction.numerator, state, group)
    (o,) = orthogonalize([clipped], group, method)
    return replace(direction, numerator=method.from_sign(o, state, group))
