"""Muon: momentum, then the matrix sign, as torch.optim.Muon, with clips."""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...arrays import on_device
from ...clip import Clip, smooth
from ...dtensor import is_dtensor, shard_count
from ...matrix.iterations import NEWTON_SCHULZ, Quintic
from ...matrix.sign import iteration_dtype, msign, sign_of_unit
from ...operators import global_clip
from ..batches import CACHED_ENTRIES, DEVICE_ENTRIES, cut
from ..direction import Direction
from ..foreach import batchable
from ..groups import Group, ParameterState, check_number, layout_of
from ..kernels.backends import load_backends
from ..kernels.momentum import FusedMuon
from ..kernels.plan import FusedStep
from ..staged import Staged
from .method import Method, chosen, defaults_of, register

_STACK = DEVICE_ENTRIES  # entries whose matrix signs are taken together on a device: 256 MB in fp32, few launches


class MuonMethod(Method):
    """Momentum m <- lerp(g, m, momentum), direction msign(m), or of lerp(g, m, momentum) again with `nesterov`."""

    name: ClassVar[str] = "muon"
    buffers: ClassVar[tuple[str, ...]] = ("momentum_buffer",)
    has_sign: ClassVar[bool] = True
    kernel: ClassVar[type[FusedStep] | None] = FusedMuon

    def options(self) -> Group:
        return defaults_of(Muon.__init__)

    def check(self, group: Group) -> None:
        check_number("momentum", group["momentum"], below=1)
        check_number("eps", group["eps"])
        if group["adjust_lr_fn"] not in _SCALES:
            known = ", ".join(map(str, _SCALES))
            raise ValueError(f"adjust_lr_fn must be one of {known}, got {group['adjust_lr_fn']!r}")
        try:
            msign(torch.ones(1, 1), group["sign"])
        except ValueError as error:
            raise ValueError(f"sign is what msign calls its method: {error}") from None
        steps, coefficients = group["ns_steps"], group["ns_coefficients"]
        if not (isinstance(steps, int) and 0 < steps < 100 and len(coefficients) == 3):
            raise ValueError(
                f"ns_steps must be from 1 to 99 and ns_coefficients three numbers, got {steps} and {coefficients}"
            )
        if group["fused"]:
            load_backends(group["params"])
        for stage in ("pre", "post"):
            if group[stage] is not None and group[stage].operator is global_clip:
                effect = "shrinks the orthogonalised update" if stage == "post" else "is undone by the matrix sign"
                warnings.warn(f"a global norm clip at stage {stage} of a Muon group {effect}", stacklevel=2)
        for p in group["params"]:
            if p.ndim < 2:
                raise ValueError(f"Muon takes matrices, got a parameter of shape {tuple(p.shape)}: use AdamW for it")

    def make_buffers_(self, w: Tensor, state: ParameterState, group: Group) -> None:
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(w, memory_format=torch.preserve_format)

    def update_(self, g: Tensor, w: Tensor, state: ParameterState, group: Group) -> None:
        self.make_buffers_(g, state, group)
        state["momentum_buffer"].lerp_(g, 1 - group["momentum"])

    def update_all_(self, gs: list[Tensor], ws: list[Tensor], states: list[ParameterState], group: Group) -> None:
        buffers = [state["momentum_buffer"] for state in states if "momentum_buffer" in state]
        if len(buffers) < len(gs) or not batchable(gs):
            super().update_all_(gs, ws, states, group)
            return
        torch._foreach_lerp_(buffers, gs, 1 - group["momentum"])

    def direction(self, g: Tensor | None, w: Tensor, state: ParameterState, group: Group) -> Direction:
        m = state["momentum_buffer"]
        if group["nesterov"]:
            assert g is not None
            m = g.lerp(m, group["momentum"])
        return self._scaled(m, w, group)

    def directions(
        self, gs: list[Tensor], ws: list[Tensor], states: list[ParameterState], group: Group
    ) -> list[Direction]:
        if not batchable(gs) or not group["nesterov"]:
            return super().directions(gs, ws, states, group)
        ms = torch._foreach_lerp(gs, [state["momentum_buffer"] for state in states], group["momentum"])
        return [self._scaled(m, w, group) for m, w in zip(ms, ws, strict=True)]

    def _scaled(self, m: Tensor, w: Tensor, group: Group) -> Direction:
        """Return the direction with the factor by which the group scales a matrix of this shape."""
        return Direction(m, scale=self.scale(w, group), fresh=group["nesterov"])

    def scale(self, w: Tensor, group: Group) -> float:
        """Return the factor of `adjust_lr_fn` for a parameter."""
        rows, columns = layout_of(group).shape(w.shape)[-2:]
        return _SCALES[group["adjust_lr_fn"]](rows, columns)

    def sign(self, m: Tensor, group: Group) -> Tensor:
        return msign(m, _sign_algorithm(group), dtype=group["precision"])

    def unit_dtype(self, w: Tensor, group: Group) -> torch.dtype:
        """Return the dtype that `sign_of_unit` should be given matrices of the fp32 parameter `w` in."""
        return iteration_dtype(w, _sign_algorithm(group), group["precision"])

    def sign_of_unit(self, unit: Tensor, group: Group) -> Tensor:
        """Return the matrix sign of matrices that have been divided by their Frobenius norm."""
        return sign_of_unit(unit, _sign_algorithm(group))

    def batches(self, params: list[Tensor], group: Group) -> Iterator[list[Tensor]]:
        """Yield parameters together whose matrices are alike, in stacks of bounded size.

        On a device these are all matrices of one shape or its transpose, whatever batch or blocks they are in: the sign
        of a transpose is the transpose of the sign.
        """
        alike: dict[Any, list[Tensor]] = {}
        for p in params:
            shape = tuple(p.shape)
            if on_device(p) and not is_dtensor(p):
                shape = tuple(sorted(layout_of(group).shape(shape)[-2:]))
            alike.setdefault((shape, p.dtype, p.device, getattr(p, "placements", None)), []).append(p)
        for same in alike.values():
            yield from _stacks(same)


def _stacks(params: list[Tensor]) -> Iterator[list[Tensor]]:
    """Cut a list of parameters into stacks of a bounded number of entries; of DTensors, one for each process."""
    if is_dtensor(params[0]):
        size = shard_count(params[0])
        yield from (params[i : i + size] for i in range(0, len(params), size))
        return
    yield from cut(params, _STACK if on_device(params[0]) else min(_STACK, CACHED_ENTRIES))


def _sign_algorithm(group: Group) -> str | Sequence[Quintic]:
    """Return what `msign` calls its method: the group's own Newton-Schulz steps, or the name of another algorithm."""
    own_steps = (tuple(group["ns_coefficients"]),) * group["ns_steps"]
    return own_steps if group["sign"] == "newton_schulz" else group["sign"]


def _original(rows: int, columns: int) -> float:
    return math.sqrt(max(1, rows / columns)) if columns else 1.0


def _match_rms_adamw(rows: int, columns: int) -> float:
    return 0.2 * math.sqrt(max(rows, columns))


def _unscaled(rows: int, columns: int) -> float:
    return 1.0


_SCALES = {
    None: _original,
    "original": _original,
    "match_rms_adamw": _match_rms_adamw,
    "none": _unscaled,
}


class Muon(Staged):
    """torch.optim.Muon with entry-wise clipping of the momentum before the matrix sign: the paper's pre-clipping.

    `adjust_lr_fn` scales the update: "original" (or None) by sqrt(max(1, rows/columns)), "match_rms_adamw", the
    paper's, by 0.2 sqrt(max(rows, columns)), "none" not at all. `sign` names the algorithm of the matrix sign, as in
    `entryclip.msign`, and `precision` the dtype of its iterations (default: by device). `eps` is there for torch's
    sake: no gradient is too small. Parameters of more than two dimensions are batches of matrices. `fused` lets kernels
    on a GPU do what comes before the matrix sign; on a CPU the plain step is taken.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.zeros(4, 4))
    >>> w.grad = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    >>> Muon([w], lr=0.1, sign="svd", pre=None).step()
    >>> torch.linalg.svdvals(w.data)
    tensor([0.1000, 0.1000, 0.1000, 0.1000])
    """

    method: ClassVar[Method] = register(MuonMethod())

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = NEWTON_SCHULZ[0],
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        *,
        sign: str = "newton_schulz",
        precision: torch.dtype | None = None,
        maximize: bool = False,
        fused: bool = False,
        grad: Clip | None = None,
        pre: Clip | None = smooth(0.99),  # noqa: B008 - frozen
        post: Clip | None = None,
        nonfinite: str = "propagate",
        fp32_state: bool = False,
        capturable: bool = False,
    ):
        super().__init__(params, chosen(defaults_of(Muon.__init__), locals()))
