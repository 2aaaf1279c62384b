"""The fused steps of methods with momentum: SGD's whole step, and Muon's up to the matrix sign.

SGD's direction is clipped and moves the weights, as AdamW's does. Muon's is clipped and written out in the precision of
the matrix sign, all matrices of one shape into one stack, together with their Frobenius norms: no pass of its own casts
it, stacks it or measures it.
"""

import dataclasses
import itertools
import math
from typing import ClassVar, cast

import torch
from torch import Tensor

from ...dtensor import is_dtensor
from ..direction import Direction, move_all_
from ..groups import Group, ParameterState, layout_of
from .binding import ParameterBinding
from .device_constants import host_lr, lr_constants
from .fused_group import FusedGroup
from .matrix_rows import MatrixRows, matrix_rows
from .plan import Backend, DirectionBackend, DirectionKind, MomentumConstants

_TOGETHER = 1 << 27  # entries of Muon's parameters that are stepped together: 256 MB of directions in bf16


class FusedSGD(FusedGroup):
    """The fused step of one SGD group. The step that makes a momentum buffer is left to the plain path."""

    stage = "post"
    options: ClassVar[tuple[str, ...]] = ("grad", "weight_decay")

    def __init__(self) -> None:
        super().__init__()
        self._missing = 0  # buffers that were not there when the plan was made

    def serves(self, params: list[Tensor], weights: list[Tensor], states: list[ParameterState], group: Group) -> bool:
        """Tell whether the plan of the last step serves this one: not where a buffer was made since."""
        missing = sum(state.get(key) is None for key in self._buffers(group) for state in states)
        if missing != self._missing:
            self._params, self._missing = [], missing
        return super().serves(params, weights, states, group)

    def _kind(self, group: Group) -> DirectionKind:
        if group["momentum"] == 0:
            return DirectionKind.GRADIENT
        return DirectionKind.NESTEROV if group["nesterov"] else DirectionKind.MOMENTUM

    def _buffers(self, group: Group) -> tuple[str, ...]:
        return () if group["momentum"] == 0 else ("momentum_buffer",)

    def _supports(self, p: Tensor, w: Tensor, state: ParameterState, group: Group, backend: type[Backend]) -> bool:
        is_coupled = group["weight_decay"] != 0 and group["grad"] is None and group["post"] is None
        return not is_coupled and super()._supports(p, w, state, group, backend)

    def _constants(self, group: Group) -> list[MomentumConstants]:
        lr = host_lr(group) if self._plan.is_capturable else float(group["lr"])
        self._plan.device_constants = lr_constants(group) if self._plan.is_capturable else {}
        sign = -1.0 if group["maximize"] else 1.0
        fresh, decay = sign * (1 - group["dampening"]), 1 - lr * group["weight_decay"]
        return [MomentumConstants(group["momentum"], fresh, group["momentum"], sign, decay, lr)]


class FusedMuon:
    """The fused step of one Muon group, which steps its parameters in portions of bounded size."""

    clips_gradients = False

    def __init__(self) -> None:
        self.rest: list[Tensor] = []
        self.taken: list[int] = []
        self._made: list[
            MuonPortion
        ] = []  # with `capturable` also those that are not needed now: graphs may work there
        self._parts: list[list[int]] = []  # the positions of each portion's parameters
        self._portions: list[tuple[MuonPortion, int]] = []  # of this step, each with how many parameters it steps

    @property
    def takes_half(self) -> bool:
        """Whether the kernels read half gradients and write half parameters, in every portion."""
        return bool(self._portions) and all(portion.takes_half for portion, _ in self._portions)

    def serves(self, params: list[Tensor], weights: list[Tensor], states: list[ParameterState], group: Group) -> bool:
        """Tell whether the plans of the last step serve this one."""
        parts = _portions(weights)
        return parts == self._parts and all(
            portion.serves([params[i] for i in part], [weights[i] for i in part], [states[i] for i in part], group)
            for (portion, _), part in zip(self._portions, parts, strict=True)
        )

    def bind(
        self, params: list[Tensor], weights: list[Tensor], states: list[ParameterState], group: Group
    ) -> list[int]:
        """Make sure that the plans are those of these parameters; returns the positions of those they step."""
        self._parts = parts = _portions(weights)
        self._made += [MuonPortion() for _ in range(len(parts) - len(self._made))]
        self.rest, self._portions = [], []
        self.taken = []
        for portion, part in zip(self._made, parts, strict=False):
            own = portion.bind([params[i] for i in part], [weights[i] for i in part], [states[i] for i in part], group)
            self.taken += [part[i] for i in own]
            self.rest += portion.rest
            self._portions.append((portion, len(own)))
        if not group["capturable"]:
            del self._made[len(parts) :]
        return self.taken

    def step_(self, gradients: list[Tensor], group: Group) -> None:
        """Step the bound parameters with these gradients, one for each."""
        remaining = iter(gradients)
        for portion, count in self._portions:
            portion.step_(list(itertools.islice(remaining, count)), group)


class MuonPortion(FusedGroup):
    """Parameters of a Muon group that are stepped in the same launches."""

    stage = "pre"
    options: ClassVar[tuple[str, ...]] = ("post",)

    def step_(self, gradients: list[Tensor], group: Group) -> None:
        """Step the bound parameters with these gradients, one for each."""
        bindings = self._plan.bindings
        if not bindings:
            return
        stacks = [_Stack(list(same), group) for _, same in itertools.groupby(bindings, lambda b: _stored(b.w, group))]
        self._plan.outputs = [output for stack in stacks for output in stack.outputs()]
        super().step_(gradients, group)
        inverse = cast(DirectionBackend, self._backend).inverse_norms(self._plan)
        for stack, norms in zip(stacks, torch.split(inverse, [len(s.directions) for s in stacks]), strict=True):
            stack.move_weights_(norms, group)
        self._plan.outputs = []  # no memory is held between the steps

    def _kind(self, group: Group) -> DirectionKind:
        return DirectionKind.NESTEROV if group["nesterov"] else DirectionKind.MOMENTUM

    def _buffers(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",)

    def _supports(self, p: Tensor, w: Tensor, state: ParameterState, group: Group, backend: type[Backend]) -> bool:
        contiguous = layout_of(group).is_contiguous()
        whole = contiguous and not is_dtensor(w)  # the matrix sign needs all of a matrix
        return group["post"] is None and whole and super()._supports(p, w, state, group, backend)

    def _rows(self, w: Tensor, group: Group) -> MatrixRows:
        return matrix_rows(w, layout_of(group))  # each has a norm, also where none is clipped

    def _sorted(self, supported: list[int], weights: list[Tensor], group: Group) -> list[int]:
        return sorted(supported, key=lambda i: _stored(weights[i], group))

    def _constants(self, group: Group) -> list[MomentumConstants]:
        keep, sign = group["momentum"], -1.0 if group["maximize"] else 1.0
        return [MomentumConstants(keep, sign * (1 - keep), keep, sign * (1 - keep), 1.0, 0.0)]


class _Stack:
    """The matrices of one shape, as they lie in memory, of several parameters: (matrices, rows, columns)."""

    def __init__(self, bindings: list[ParameterBinding], group: Group):
        w = bindings[0].w
        self._weights = [each.w for each in bindings]
        self._unit_dtype = group["method"].unit_dtype(w, group)
        counts = [math.prod(layout_of(group).shape(w.shape)[:-2]) for w in self._weights]
        written = torch.bfloat16 if self._unit_dtype == torch.bfloat16 else torch.float32  # fp16 might overflow
        self.directions = torch.empty(sum(counts), *_stored(w, group), dtype=written, device=w.device)
        self._counts = counts

    def outputs(self) -> list[Tensor]:
        """Return the part of the stack that belongs to each parameter."""
        return list(torch.split(self.directions, self._counts))

    def move_weights_(self, inverse_norms: Tensor, group: Group) -> None:
        """Take the matrix signs of the directions, which are spent afterwards, and move the weights by them."""
        method = group["method"]
        unit = torch.mul(self.directions, inverse_norms[:, None, None], out=self.directions).to(self._unit_dtype)
        signs = torch.split(method.sign_of_unit(unit, group), self._counts)
        scale = method.scale(self._weights[0], group)
        moves = [Direction(sign.reshape(w.shape), scale=scale) for sign, w in zip(signs, self._weights, strict=True)]
        method.decay_all_(self._weights, group)
        move_all_(moves, self._weights, group["lr"], capturable=group["capturable"])


def _stored(w: Tensor, group: Group) -> tuple[int, ...]:
    """Return rows and columns of the matrices of `w` in memory: the sign commutes with transposing."""
    return dataclasses.replace(layout_of(group), transposed=False).shape(tuple(w.shape))[-2:]


def _portions(weights: list[Tensor]) -> list[list[int]]:
    """Cut the positions of parameters into portions of at most `_TOGETHER` entries, or of one parameter."""
    portions: list[list[int]] = []
    room = 0
    for i, w in enumerate(weights):
        if not portions or w.numel() > room:
            portions.append([])
            room = _TOGETHER
        portions[-1].append(i)
        room -= w.numel()
    return portions
