"""StableAdamW: AdamW whose step is divided by the root mean square of g / sqrt(v) where that exceeds 1.

Wortsman, Dettmers, Zettlemoyer, Morcos, Farhadi and Schmidt, "Stable and low-precision training for large-scale
vision-language models", NeurIPS 2023 (arXiv:2304.13013): Adafactor's update clipping, for AdamW.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...clip import Clip
from ...dtensor import whole
from ..bias_correction import bias_corrections
from ..direction import Direction
from ..groups import Group, ParameterState
from ..kernels.plan import FusedStep
from ..staged import Staged
from .adamw import AdamWMethod
from .method import Method, chosen, defaults_of, register


class StableAdamWMethod(AdamWMethod):
    """AdamW's direction divided by max(1, RMS), RMS^2 the mean of g^2 / max(v, eps^2) with v free of its bias."""

    name: ClassVar[str] = "stable-adamw"
    kernel: ClassVar[type[FusedStep] | None] = None  # AdamW's does not look at the gradient again

    def options(self) -> Group:
        return {"amsgrad": False, **defaults_of(StableAdamW.__init__)}

    def direction(self, g: Tensor | None, w: Tensor, state: ParameterState, group: Group) -> Direction:
        assert g is not None
        plain = super().direction(g, w, state, group)
        return replace(plain, divisor=plain.divisor * self._excess(g, state, group))

    def _excess(self, g: Tensor, state: ParameterState, group: Group) -> Any:
        """Return max(1, RMS): a number for a parameter on the host, else a tensor, so that nobody waits for it."""
        if not g.numel():
            return 1.0
        on_host = g.is_cpu and not torch.compiler.is_compiling()
        step = state["step"].item() if on_host else state["step"].to(g.device)
        _, bias2 = bias_corrections(step, group["betas"])
        second = (state["exp_avg_sq"] / bias2).clamp_(min=group["eps"] ** 2)
        rms = whole((g.square() / second).mean()).sqrt()
        return max(1.0, rms.item()) if on_host else rms.clamp(min=1.0)

    def can_direct(self, g: Tensor | None, state: ParameterState, group: Group) -> bool:
        return g is not None and super().can_direct(g, state, group)


class StableAdamW(Staged):
    """StableAdamW: for each parameter the learning rate is divided by max(1, RMS(g / sqrt(v))).

    The gradient g is this step's and v its running second moment, this step included: a gradient that is larger than
    usual everywhere makes a smaller step, before the first moment carries it on. Weight decay is not divided, as in the
    authors' own program; other implementations divide it, too.

    >>> w = torch.nn.Parameter(torch.zeros(2, 2))
    >>> optimizer = StableAdamW([w], lr=1.0, betas=(0.0, 0.99), weight_decay=0.0)
    >>> for size in (1.0, 100.0):
    ...     before, w.grad = w.detach().clone(), torch.full((2, 2), size)
    ...     optimizer.step()
    ...     print(round(float((before - w.detach())[0, 0]), 2))  # AdamW would make the second step 1.41 long
    1.0
    1.0
    """

    method: ClassVar[Method] = register(StableAdamWMethod())

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        maximize: bool = False,
        capturable: bool = False,
        grad: Clip | None = None,
        post: Clip | None = None,
        nonfinite: str = "propagate",
        clip_vectors: bool = False,
        fp32_state: bool = False,
    ):
        super().__init__(params, chosen(defaults_of(StableAdamW.__init__), locals()))
