"""AdamW's fused step: the whole step in one pass over memory, or two."""

import math
from typing import Any, ClassVar

from torch import Tensor

from ...auto_threshold import Auto
from ..capture import count_steps_
from ..groups import Group, ParameterState
from .backends import backend_of
from .device_constants import device_constants, host_lr
from .fused_group import FusedGroup
from .plan import AdamConstants, Backend, DirectionKind


class FusedAdamW(FusedGroup):
    """The fused step of one AdamW group.

    Its kernel applies the clip of the directions. It applies that of the gradients instead where there is no other, the
    rule is `Auto`, and the backend knows how to.
    """

    options: ClassVar[tuple[str, ...]] = ("amsgrad",)

    def __init__(self) -> None:
        super().__init__()
        self.stage = "post"

    def serves(self, params: list[Tensor], weights: list[Tensor], states: list[ParameterState], group: Group) -> bool:
        """Tell whether the plan of the last step serves this one, at the stage that the kernel clips now."""
        self.stage = "post"
        if group["post"] is None and group["grad"] is not None and type(group["grad"].rule) is Auto:
            _, backend = backend_of(weights)
            if backend is not None and backend.scaled is not None and "grad" in backend.scaled.stages:
                self.stage = "grad"
        counted = {type(state.get("step")) for state in states} <= {Tensor}  # older torch counted in plain numbers
        return counted and super().serves(params, weights, states, group)

    @property
    def clips_gradients(self) -> bool:
        """Whether the kernel takes the gradients as they are, and clips them itself."""
        return self.stage == "grad"

    def _plan_options(self, group: Group) -> list[Any]:
        return [self.stage, *super()._plan_options(group)]

    def _kind(self, group: Group) -> DirectionKind:
        return DirectionKind.ADAM

    def _buffers(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def _supports(self, p: Tensor, w: Tensor, state: ParameterState, group: Group, backend: type[Backend]) -> bool:
        return not group["amsgrad"] and super()._supports(p, w, state, group, backend)

    def _constants(self, group: Group) -> list[AdamConstants]:
        """Count the step of each parameter and return its constants, a single one where all are at the same step.

        Of a capturable step these are the numbers of the host; the plan gets those of the device besides.
        """
        steps = [state["step"] for state in self._states]
        count_steps_(steps, group)
        if self._plan.is_capturable:
            self._plan.device_constants = device_constants(steps, group)
            return [_constants(1.0, {**group, "lr": host_lr(group)})]
        counts = [step.item() for step in steps]
        return [_constants(count, group) for count in (counts[:1] if len(set(counts)) == 1 else counts)]


def _constants(step: float, group: Group) -> AdamConstants:
    """Return the numbers of step `step` (1 at the first), with torch's bias corrections."""
    beta1, beta2 = group["betas"]
    first, lr = 1 - beta1**step, float(group["lr"])
    a = first / math.sqrt(1 - beta2**step)
    decay = 1 - lr * group["weight_decay"]
    sign = -1.0 if group["maximize"] else 1.0
    return AdamConstants(sign, beta1, 1 - beta1, beta2, 1 - beta2, a, group["eps"] * first, decay, lr)
