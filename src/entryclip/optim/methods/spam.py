"""SPAM and Stable-SPAM: Adam whose gradient is clipped by its own history and whose moments begin anew at times.

Huang, Zhu, Jin, Liu, Wang and Liu, "SPAM: Spike-Aware Adam with Momentum Reset for Stable LLM Training", ICLR 2025
(arXiv:2501.06842). Huang et al., "Stable-SPAM: How to Train in 4-Bit More Stably than 16-Bit Adam" (arXiv:2502.17055).
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...clip import Clip
from ...dtensor import whole
from ..direction import Direction
from ..finite import propagated
from ..groups import Group, ParameterState, check_number
from ..kernels.plan import FusedStep
from ..norm_clip import total_norm
from ..staged import Staged
from .adamw import AdamWMethod
from .method import Method, chosen, defaults_of, register

_START = 0.01  # the share of the learning rate in the step of a reset


class _ResettingMethod(AdamWMethod):
    """AdamW whose moments are set to 0 every `reset` steps; the steps are counted on the host."""

    kernel: ClassVar[type[FusedStep] | None] = None

    def check(self, group: Group) -> None:
        super().check(group)
        if type(group["reset"]) is not int or group["reset"] < 0:
            raise ValueError(f"reset must be a whole number of steps, 0 for never, got {group['reset']!r}")
        if group["capturable"]:
            raise ValueError(f"{self} counts steps on the host, which a CUDA graph cannot: leave capturable False")

    def _reset_(self, state: ParameterState) -> None:
        """Set both moments to 0."""
        state["exp_avg"].zero_()
        state["exp_avg_sq"].zero_()


class SPAMMethod(_ResettingMethod):
    """AdamW with |g_i| <= sqrt(threshold v_i), v before this step; after a reset of the moments the rate rises anew."""

    name: ClassVar[str] = "spam"

    def options(self) -> Group:
        return {"amsgrad": False, **defaults_of(SPAM.__init__)}

    def check(self, group: Group) -> None:
        super().check(group)
        check_number("threshold", group["threshold"])
        for name in ("warmup", "clip_after"):
            if type(group[name]) is not int or group[name] < 0:
                raise ValueError(f"{name} must be a whole number of steps >= 0, got {group[name]!r}")

    def update_(self, g: Tensor, w: Tensor, state: ParameterState, group: Group) -> None:
        self.make_buffers_(w, state, group)
        since = self._since_reset(int(state["step"]) + 1, group)
        if since == 0:
            self._reset_(state)
        elif since >= group["clip_after"]:
            g = _spikes_cut(g, state["exp_avg_sq"], group["threshold"])
        super().update_(g, w, state, group)

    def direction(self, g: Tensor | None, w: Tensor, state: ParameterState, group: Group) -> Direction:
        step, reset = int(state["step"]), group["reset"]
        plain = super().direction(g, w, state, group)
        if not reset or step < reset:
            return plain
        return replace(plain, scale=plain.scale * _cosine_warmup(step % reset, group["warmup"]))

    def _since_reset(self, step: int, group: Group) -> int:
        """Return the number of steps from the last reset to this one; from the first step where there was none."""
        return step % group["reset"] if group["reset"] else step


class StableSPAMMethod(_ResettingMethod):
    """AdamW of a gradient whose largest entries (AdaClip) and norm (AdaGN) are brought to what they were before."""

    name: ClassVar[str] = "stable-spam"
    exact: ClassVar[tuple[str, ...]] = ("updates", "largest_average", "norm_average", "norm_square_average")

    def options(self) -> Group:
        return {"amsgrad": False, **defaults_of(StableSPAM.__init__)}

    def check(self, group: Group) -> None:
        super().check(group)
        if len(group["gammas"]) != 3:
            raise ValueError(f"gammas must be three numbers in [0, 1), got {group['gammas']}")
        for gamma in group["gammas"]:
            check_number("each of gammas", gamma, below=1)

    def update_(self, g: Tensor, w: Tensor, state: ParameterState, group: Group) -> None:
        self.make_buffers_(w, state, group)
        for key in self.exact:
            if key not in state:
                state[key] = torch.zeros((), dtype=_dtype(w), device=w.device)
        state["updates"] += 1
        if g.numel():
            g = _stabilized_(g, state, group)
        if group["reset"] and int(state["updates"]) % group["reset"] == 0:
            self._reset_(state)
            state["step"].zero_()  # so that the bias correction begins anew, too
        super().update_(g, w, state, group)


def _spikes_cut(g: Tensor, second: Tensor, threshold: float) -> Tensor:
    """Return the gradient with |g_i| at most sqrt(threshold v_i); an entry of v = 0, never seen before, is kept."""
    limit = (second * threshold).sqrt_()
    limit = torch.where(second > 0, limit, math.inf)
    return propagated(torch.minimum(torch.maximum(g, -limit), limit), g)


def _cosine_warmup(since: int, warmup: int) -> float:
    """Return the factor of the learning rate so many steps after a reset: from 0.01 up to 1, along a cosine."""
    if since >= warmup:
        return 1.0
    return 1 - (1 - _START) * (1 + math.cos(math.pi * since / (warmup + 1))) / 2


def _stabilized_(g: Tensor, state: ParameterState, group: Group) -> Tensor:
    """Return the gradient after AdaClip and AdaGN, and take it into their averages in `state`."""
    gamma1, gamma2, gamma3 = group["gammas"]
    t = state["updates"]
    largest = whole(g.abs().amax()).to(t.dtype)
    limit = state["largest_average"].lerp_(largest, 1 - gamma3) / (1 - gamma3**t)
    shrink = torch.where(largest > limit, limit / largest, 1.0)
    g = torch.where(g.abs() > limit, g * shrink, g)
    norm = total_norm([g]).to(t.dtype)
    mean = state["norm_average"].lerp_(norm, 1 - gamma1) / (1 - gamma1**t)
    square = state["norm_square_average"].lerp_(norm.square(), 1 - gamma2) / (1 - gamma2**t)
    wanted = mean / (square.sqrt() + group["eps"])
    return g * torch.where(norm > 0, wanted / norm, 1.0)


def _dtype(w: Tensor) -> torch.dtype:
    """Return the dtype of averages over steps: fp64, which holds the square of any norm; Apple's devices lack it."""
    return torch.float32 if w.device.type == "mps" else torch.float64


class SPAM(Staged):
    """SPAM: AdamW with each entry of the gradient at most sqrt(threshold v_i), and moments that are reset.

    threshold     how many times its running second moment an entry's square may be
    reset         every how many steps both moments are set to 0 (0: never)
    warmup        steps over which the learning rate rises along a cosine after each reset, but not in the beginning
    clip_after    steps after the beginning and after each reset in which nothing is clipped yet

    These are the defaults of the authors' program, which this follows. Its sparse momentum is not here. An entry that
    never had a gradient is not clipped; as published, it would be held at 0 for ever.

    >>> w = torch.nn.Parameter(torch.zeros(1, 2))
    >>> optimizer = SPAM([w], threshold=4.0, clip_after=1)
    >>> for g in ([1.0, 1.0], [1.0, 1e9]):
    ...     w.grad = torch.tensor([g])
    ...     optimizer.step()
    >>> bool(w[0, 1].abs() < 1e-2)
    True
    """

    method: ClassVar[Method] = register(SPAMMethod())

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        threshold: float = 5000.0,
        reset: int = 500,
        warmup: int = 150,
        clip_after: int = 20,
        maximize: bool = False,
        grad: Clip | None = None,
        post: Clip | None = None,
        nonfinite: str = "propagate",
        clip_vectors: bool = False,
        fp32_state: bool = False,
    ):
        super().__init__(params, chosen(defaults_of(SPAM.__init__), locals()))


class StableSPAM(Staged):
    """Stable-SPAM: before AdamW, AdaClip and AdaGN bring the largest entries and the norm of a gradient to their past.

    gammas    of the averages (g1, g2, g3) below, each free of its start's bias
    reset     every how many steps both moments of AdamW are set to 0 (0: never)

    AdaClip: where |g_i| exceeds T, the average (g3) of max |g|, this step included, g_i <- g_i T / max |g|. AdaGN:
    g <- g / ||g|| * mean (g1) of ||g|| / root of the mean (g2) of ||g||^2. Both are per parameter. A reset begins
    AdamW's bias correction anew; the authors' program then also takes the averages above for new ones, which is not
    done here.

    >>> w = torch.nn.Parameter(torch.zeros(2, 2))
    >>> w.grad = torch.full((2, 2), 1e9)
    >>> StableSPAM([w], lr=1.0).step()
    >>> w.data.round(decimals=5)
    tensor([[-1., -1.],
            [-1., -1.]])
    """

    method: ClassVar[Method] = register(StableSPAMMethod())

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        gammas: tuple[float, float, float] = (0.7, 0.9, 0.999),
        reset: int = 1000,
        maximize: bool = False,
        grad: Clip | None = None,
        post: Clip | None = None,
        nonfinite: str = "propagate",
        clip_vectors: bool = False,
        fp32_state: bool = False,
    ):
        super().__init__(params, chosen(defaults_of(StableSPAM.__init__), locals()))
