"""What the clips do, worked out from the optimizer's state when somebody asks: it costs nothing until then."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..arrays import widen
from ..dtensor import whole
from ..thresholds import Step
from .groups import clips, layout_of

if TYPE_CHECKING:
    from .staged import Staged


class ClipRow(NamedTuple):
    """One parameter at one stage; of a batch of matrices the one with the largest entry."""

    name: str
    stage: str
    threshold: float
    damped: float  # the share of entries that lose more than half
    rms_kept: float  # root mean square after over before
    largest: float  # the largest entry as a multiple of the threshold
    place: tuple[int, ...]  # where it sits

    def __str__(self) -> str:
        *batch, row, column = (0, *self.place)[-max(len(self.place), 2) :]
        matrix = f" matrix {', '.join(map(str, batch))}" if batch else ""
        return (
            f"{self.name} ({self.stage}){matrix} row {row} col {column}: {self.largest:.3g} x threshold "
            f"{self.threshold:.3g}, {self.damped:.2%} damped by more than half, {self.rms_kept:.0%} of RMS kept"
        )


class ClipReport(list[ClipRow]):
    """The rows, worst first; prints as one line each."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "nothing was clipped: no clip, no step yet, or gradients already cleared"


@torch.no_grad()
def clip_report(optimizer: "Staged", top: int | None = None) -> ClipReport:
    """What each clip makes of the present gradients and moments, the largest entries first.

    A `grad` clip needs the gradients, so ask before `zero_grad`; what rests on moments alone can be asked any time.
    """
    rows = []
    for number, group in enumerate(optimizer.param_groups):
        for name, p in named(group, number):
            for stage, x in _stage_inputs(optimizer, p, group):
                rows.append(_row(optimizer, p, group, stage, x, name))
    rows.sort(key=lambda row: -row.largest if not math.isnan(row.largest) else -math.inf)
    return ClipReport(rows[:top])


def named(group: dict[str, Any], number: int) -> Iterator[tuple[str, Tensor]]:
    """The parameters of group `number` with their names, or their numbers where none were given."""
    names = group.get("param_names") or [f"group {number} parameter {i}" for i in range(len(group["params"]))]
    yield from zip(names, group["params"], strict=True)


def _stage_inputs(optimizer: "Staged", p: Tensor, group: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """What each clipped stage would be given, with no state changed."""
    method, state = optimizer.methods[group["method"]], optimizer.state.get(p, {})
    found: list[tuple[str, Tensor]] = []
    g = p.grad
    if not p.numel():
        return found
    if g is not None and not g.is_sparse:
        g = widen(-g if group["maximize"] else g) if group["fp32_state"] else -g if group["maximize"] else g
        if clips(group, "grad", p):
            found.append(("grad", g))
            g = _clipped(optimizer, p, group, "grad", g)
    if not method.ready(g, state, group):
        return found
    direction = method.direction(g if g is not None else p, p, state, group)
    if method.has_sign and clips(group, "pre", p):
        found.append(("pre", direction.numerator))
    elif not method.has_sign and clips(group, "post", p):
        found.append(("post", direction.tensor()))
    return found


def _clipped(optimizer: "Staged", p: Tensor, group: dict[str, Any], stage: str, x: Tensor) -> Tensor:
    m = layout_of(group).matrices(x)
    memory = optimizer.memory(p, stage) or group[stage].init(m)
    return layout_of(group).restore(group[stage].update(m, memory, _step(group))[0], x.shape)


def _row(optimizer: "Staged", p: Tensor, group: dict[str, Any], stage: str, x: Tensor, name: str) -> ClipRow:
    m = layout_of(group).matrices(whole(x))
    clip, memory = group[stage], optimizer.memory(p, stage) or group[stage].init(m)
    threshold = clip.rule(m, memory, _step(group))[0]
    before, after = widen(m), widen(clip.update(m, memory, _step(group))[0])
    multiple = (before.abs() / threshold).nan_to_num(nan=0.0, posinf=math.inf)
    at = int(multiple.argmax())
    place = torch.unravel_index(torch.tensor(at), m.shape)
    return ClipRow(
        name=name,
        stage=stage,
        threshold=float(torch.broadcast_to(threshold, m.shape).reshape(-1)[at]),
        damped=float((after.abs() < before.abs() / 2).double().mean()),
        rms_kept=float(torch.linalg.vector_norm(after) / torch.linalg.vector_norm(before).clamp(min=1e-300)),
        largest=float(multiple.reshape(-1)[at]),
        place=tuple(int(i) for i in place),
    )


def _step(group: dict[str, Any]) -> Step:
    return Step(lr=group["lr"])
