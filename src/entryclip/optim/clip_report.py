"""What the clips do to each parameter, worked out from the optimizer's state when asked: free until then."""

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..arrays import widen
from ..dtensor import whole
from ..thresholds import Step
from .groups import Group, ParameterState, layout_of, named, with_scalar_lr
from .stages import stage_inputs, stage_memory

if TYPE_CHECKING:
    from .staged import Staged


class ClipRow(NamedTuple):
    """What one clip does to one parameter; for a batch of matrices, to the one with the largest entry."""

    name: str
    stage: str
    threshold: float
    damped: float  # the share of entries that lose more than half
    rms_kept: float  # root mean square after over before
    largest: float  # the largest entry as a multiple of the threshold
    place: tuple[int, ...]  # where that entry is

    def __str__(self) -> str:
        *batch, row, column = (0, *self.place)[-max(len(self.place), 2) :]
        matrix = f" matrix {', '.join(map(str, batch))}" if batch else ""
        return (
            f"{self.name} ({self.stage}){matrix} row {row} col {column}: {self.largest:.3g} x threshold "
            f"{self.threshold:.3g}, {self.damped:.2%} damped by more than half, {self.rms_kept:.0%} of RMS kept"
        )


class ClipReport(list[ClipRow]):
    """The rows, the largest entry first; prints as one line each."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "nothing was clipped: no clip, no step yet, or gradients already cleared"


@torch.no_grad()
def clip_report(optimizer: "Staged", top: int | None = None) -> ClipReport:
    """Return what each clip makes of the present gradients and moments, the largest entries first.

    A `grad` clip needs the gradients, so ask before `zero_grad`; what rests on moments alone can be asked any time.
    """
    rows = []
    for number, group in enumerate(map(with_scalar_lr, optimizer.param_groups)):
        for name, p in named(group, number):
            state = optimizer.state.get(p, {})
            rows += [_row(name, stage, x, state, group) for stage, x in stage_inputs(p, state, group)]
    rows.sort(key=lambda row: -row.largest if not math.isnan(row.largest) else -math.inf)
    return ClipReport(rows[:top])


def _row(name: str, stage: str, x: Tensor, state: ParameterState, group: Group) -> ClipRow:
    m, clip = layout_of(group).matrices(whole(x)), group[stage]
    memory, when = stage_memory(stage, m, state, clip), Step(lr=group["lr"])
    threshold = clip.threshold(m, memory, when)
    before, after = widen(m), widen(clip.update(m, memory, when)[0])
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
