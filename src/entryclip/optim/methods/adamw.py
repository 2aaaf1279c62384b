"""AdamW, as torch.optim.AdamW, with clips."""

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...arrays import on_device
from ...auto_threshold import Auto
from ...clip import Clip, smooth
from ..bias_correction import bias_corrections
from ..capture import count_steps_, place_counter_
from ..direction import Direction
from ..foreach import batchable, number_of
from ..groups import Group, ParameterState, check_number, check_torch_flags, clips
from ..kernels.adamw import FusedAdamW
from ..kernels.backends import load_backends
from ..kernels.cpu import load_library
from ..kernels.plan import FusedStep
from ..kernels.scaled_cpu import load_scaled_library
from ..staged import Staged
from .method import Method, chosen, defaults_of, register


class AdamWMethod(Method):
    """Moments m <- lerp(g, m, beta1) and v <- lerp(g^2, v, beta2), direction m / (sqrt(v) + eps) without their bias."""

    name: ClassVar[str] = "adamw"
    buffers: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    kernel: ClassVar[type[FusedStep] | None] = FusedAdamW

    def options(self) -> Group:
        return defaults_of(AdamW.__init__)

    def check(self, group: Group) -> None:
        group["betas"] = tuple(number_of(beta) for beta in group["betas"])  # of one-element tensors, as torch does it
        if len(group["betas"]) != 2:
            raise ValueError(f"betas must be two numbers in [0, 1), got {group['betas']}")
        for beta in group["betas"]:
            check_number("each of betas", beta, below=1)
        check_number("eps", group["eps"])
        if group["fused"]:
            if any(p.is_cpu for p in group["params"]):
                load_library()  # compiles here, not in the first step, and says so where there is no compiler
                if any(clip is not None and type(clip.rule) is Auto for clip in (group["grad"], group["post"])):
                    load_scaled_library()
            load_backends(group["params"])

    def follow_momentum_(self, group: Group) -> None:
        if "momentum" in group:  # it is the first beta; a scheduler writes it anew at every step
            group["betas"] = (group.pop("momentum"), group["betas"][1])

    def make_buffers_(self, w: Tensor, state: ParameterState, group: Group) -> None:
        place_counter_(state, w, group)
        if "exp_avg" not in state:
            state["exp_avg"] = torch.zeros_like(w, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(w, memory_format=torch.preserve_format)
        if group["amsgrad"] and "max_exp_avg_sq" not in state:
            state["max_exp_avg_sq"] = torch.zeros_like(w, memory_format=torch.preserve_format)

    def update_(self, g: Tensor, w: Tensor, state: ParameterState, group: Group) -> None:
        self.make_buffers_(w, state, group)
        beta1, beta2 = group["betas"]
        state["step"] += 1
        state["exp_avg"].lerp_(g, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(g, g, value=1 - beta2)
        if group["amsgrad"]:
            torch.maximum(state["max_exp_avg_sq"], state["exp_avg_sq"], out=state["max_exp_avg_sq"])

    def update_all_(self, gs: list[Tensor], ws: list[Tensor], states: list[ParameterState], group: Group) -> None:
        if not batchable(gs):
            super().update_all_(gs, ws, states, group)
            return
        for w, state in zip(ws, states, strict=True):
            self.make_buffers_(w, state, group)
        beta1, beta2 = group["betas"]
        count_steps_([state["step"] for state in states], group)
        second = [state["exp_avg_sq"] for state in states]
        torch._foreach_lerp_([state["exp_avg"] for state in states], gs, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gs, gs, value=1 - beta2)
        if group["amsgrad"]:
            torch._foreach_maximum_([state["max_exp_avg_sq"] for state in states], second)

    def direction(self, g: Tensor | None, w: Tensor, state: ParameterState, group: Group) -> Direction:
        step = state["step"]
        on_host = not torch.compiler.is_compiling() and not (group["capturable"] and step.device == w.device)
        second = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
        bias1, bias2 = bias_corrections(step.item() if on_host else step, group["betas"])  # on the host nothing waits
        root_bias2 = bias2**0.5
        is_free = group["capturable"] or clips(group, "post", w)
        if on_device(w) and not torch.compiler.is_compiling() and is_free:
            # Nothing to match to the bit: bias1 (sqrt(v) / root_bias2 + eps) in two passes, not in four.
            offset, factor = bias1 * group["eps"], bias1 / root_bias2
            if on_host:
                return Direction(state["exp_avg"], torch.rsub(second.sqrt(), offset, alpha=-factor))
            return Direction(state["exp_avg"], torch.addcmul(offset, second.sqrt(), factor))
        denominator = second.sqrt().div_(root_bias2).add_(group["eps"])
        return Direction(state["exp_avg"], denominator, divisor=bias1)

    def directions(
        self, gs: list[Tensor], ws: list[Tensor], states: list[ParameterState], group: Group
    ) -> list[Direction]:
        if group["capturable"] or not batchable(ws):  # a capturable step reads no counter on the host
            return super().directions(gs, ws, states, group)
        (beta1, beta2), steps = group["betas"], [state["step"].item() for state in states]
        bias1 = [1 - beta1**step for step in steps]
        root_bias2 = [(1 - beta2**step) ** 0.5 for step in steps]
        # On a device the first bias goes into the denominator of what is clipped, as in `direction`.
        folded = [b if on_device(w) and clips(group, "post", w) else 1.0 for b, w in zip(bias1, ws, strict=True)]
        kind = "max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"
        denominators = list(torch._foreach_sqrt([state[kind] for state in states]))
        torch._foreach_div_(denominators, [root / f for root, f in zip(root_bias2, folded, strict=True)])
        torch._foreach_add_(denominators, [group["eps"] * f for f in folded])
        divisors = [b / f for b, f in zip(bias1, folded, strict=True)]
        parts = zip([state["exp_avg"] for state in states], denominators, divisors, strict=True)
        return [Direction(m, denominator, divisor=divisor) for m, denominator, divisor in parts]

    def can_direct(self, g: Tensor | None, state: ParameterState, group: Group) -> bool:
        return "exp_avg" in state


class AdamW(Staged):
    """torch.optim.AdamW with entry-wise clipping of the update: the paper's post-clipping, by default `smooth(0.995)`.

    Smooth shrinkage takes the update's root mean square down to about 60 %, which acts like a smaller learning rate:
    retune it (the paper's best is 3 times larger) or pass `post=smooth(0.995, preserve_rms=True)` to keep the old one.
    (That keeps what a spike adds to the root mean square, too: it is for updates without one.)
    With `post=None` it takes torch's steps to the bit. Matrices are clipped; vectors and scalars only with
    `clip_vectors=True`.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.zeros(8, 8))
    >>> w.grad = torch.ones(8, 8)
    >>> optimizer = AdamW([w], lr=1e-2, weight_decay=0.0)
    >>> optimizer.step()
    >>> optimizer.param_groups[0]["post"], round(w.max().item(), 5)     # 1e-2 / e: all entries are equal
    (smooth_shrinkage(q=0.995), -0.00368)
    """

    method: ClassVar[Method] = register(AdamWMethod())

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        grad: Clip | None = None,
        post: Clip | None = smooth(0.995),  # noqa: B008 - frozen
        nonfinite: str = "propagate",
        clip_vectors: bool = False,
        fp32_state: bool = False,
    ):
        check_torch_flags(differentiable=differentiable)
        super().__init__(params, chosen(defaults_of(AdamW.__init__), locals()))
