"""What the clips do to each parameter, and which entries of the gradients stand out: free until asked."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..arrays import widen
from ..clip import Clip
from ..dtensor import whole
from ..layout import PLAIN
from ..standardize import RunningScales
from ..thresholds import Step
from .gradient_outliers import GradientOutlier, describe_place, gradient_outlier
from .groups import STAGES, Group, ParameterState, layout_of, named, with_scalar_lr
from .stages import stage_inputs, stage_memory


class ClipRow(NamedTuple):
    """What one clip does to one parameter; for a batch of matrices, to the one with the largest entry."""

    name: str
    stage: str
    threshold: float
    damped: float  # the share of entries that lose more than half
    rms_kept: float  # root mean square after over before
    largest: float  # the largest entry as a multiple of the threshold
    place: tuple[int, ...]  # the index of that entry in the parameter

    def __str__(self) -> str:
        return (
            f"{self.name} ({self.stage}) {describe_place(self.place)}: {self.largest:.3g} x threshold "
            f"{self.threshold:.3g}, {self.damped:.2%} damped by more than half, {self.rms_kept:.0%} of RMS kept"
        )


class ClipReport(list[ClipRow]):
    """The rows, the largest entry first, and the outliers of the gradients; prints as one line each."""

    def __init__(self, rows: Iterable[ClipRow] = (), outliers: Iterable[GradientOutlier] = ()):
        super().__init__(rows)
        self.outliers = list(outliers)  # the largest beside its scales first

    def __str__(self) -> str:
        lines = [str(line) for line in (*self.outliers, *self)]
        return "\n".join(lines) or "nothing was clipped: no clip, no step yet, or gradients already cleared"

    def metrics(self) -> dict[str, float]:
        """Summarize the report for a logger; empty where it has neither rows nor outliers."""
        found = {"clip/outlier_scales": self.outliers[0].scales} if self.outliers else {}
        if not self:
            return found
        return {
            "clip/damped": sum(row.damped for row in self) / len(self),
            "clip/rms_kept": sum(row.rms_kept for row in self) / len(self),
            "clip/largest": self[0].largest,
            **found,
        }


@torch.no_grad()
def clip_report(optimizer: Any, top: int | None = 10, *, batch: Any = None) -> ClipReport:
    """Return what each clip makes of the present gradients and moments, and the outliers of the gradients.

    optimizer   one of `entryclip.optim`, or a wrapper of it that keeps it as `.optimizer`, as Accelerate's and
                Lightning's do. Any other torch optimizer has no rows, and outliers all the same
    top         how many rows and outliers at most, the largest first; None for all
    batch       what to say of the batch with each outlier, such as its number

    Ask between the step and `zero_grad`: a `grad` clip and the outliers need the gradients. What rests on moments alone
    can be asked any time. An outlier is an entry that exceeds what Gaussian noise of its row's and column's scale would
    show in one matrix of a thousand; of each parameter the largest is given. Adam normalises it away in one step, so
    that no clip of its update would show it.

    >>> model = torch.nn.Linear(64, 32)
    >>> optimizer = torch.optim.AdamW(model.named_parameters())
    >>> model.weight.grad = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    >>> model.weight.grad[7, 50] = 1000.0
    >>> print(clip_report(optimizer))
    weight (gradient) row 7 col 50: 1e+03, 893 x its scale
    """
    optimizer = _unwrapped(optimizer)
    rows: list[ClipRow] = []
    outliers: list[GradientOutlier] = []
    for number, group in enumerate(map(with_scalar_lr, optimizer.param_groups)):
        ours = all(key in group for key in ("method", *STAGES))
        for name, p in named(group, number):
            state = optimizer.state.get(p, {})
            inputs = stage_inputs(p, state, group) if ours else ()
            rows += [_row(name, stage, x, state, group) for stage, x in inputs if _damps(group[stage])]
            found = None if p.grad is None else gradient_outlier(name, p.grad, layout_of(group) if ours else PLAIN)
            outliers += [] if found is None else [found._replace(batch=batch)]
    rows.sort(key=lambda row: -row.largest if not math.isnan(row.largest) else -math.inf)
    outliers.sort(key=lambda outlier: -outlier.scales)
    return ClipReport(rows[:top], outliers[:top])


def _unwrapped(optimizer: Any) -> Any:
    """Return the optimizer inside the wrappers of Accelerate, Lightning and others."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def _damps(clip: Clip) -> bool:
    """Tell whether a clip damps entries beyond a threshold; `standardized()` divides all of them by their scale."""
    return not isinstance(clip.rule, RunningScales)


def _row(name: str, stage: str, x: Tensor, state: ParameterState, group: Group) -> ClipRow:
    m, clip = layout_of(group).matrices(whole(x)), group[stage]
    memory, when = stage_memory(stage, m, state, clip), Step(lr=group["lr"])
    threshold = clip.threshold(m, memory, when)
    before, after = widen(m), widen(clip.update(m, memory, when)[0])
    multiple = (before.abs() / threshold).nan_to_num(nan=0.0, posinf=math.inf)
    at = int(multiple.argmax())
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), m.shape))
    return ClipRow(
        name=name,
        stage=stage,
        threshold=float(torch.broadcast_to(threshold, m.shape).reshape(-1)[at]),
        damped=float((after.abs() < before.abs() / 2).double().mean()),
        rms_kept=float(torch.linalg.vector_norm(after) / torch.linalg.vector_norm(before).clamp(min=1e-300)),
        largest=float(multiple.reshape(-1)[at]),
        place=layout_of(group).locate(place, tuple(x.shape)),
    )
