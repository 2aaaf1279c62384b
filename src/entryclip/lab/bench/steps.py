"""Times of optimizer steps on block matrices of GPT-2 small, with a fresh gradient each step, beside torch's own."""

import copy
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...clip import Clip, auto, smooth
from ...operators import smooth_shrinkage
from ...optim import AdamW, Muon
from ...optim.kernels.fused_group import FusedGroup
from ...thresholds import Fixed, Quantile, Running
from .timing import Result, cost, side_by_side

LAYERS = 3  # of 12: the ratios do not depend on how many
SHAPES = ((3, 768, 768), (768, 768), (3072, 768), (768, 3072))
RUNNING = Clip(smooth_shrinkage, Running(Quantile(0.995), beta=0.9))
FIXED = Clip(smooth_shrinkage, Fixed(1.0))
# Bytes that a fused step reads and writes per fp32 parameter: g, m, v, p in and m, v, p out; with an exact quantile the
# direction is needed twice, with auto() that or the gradient.
_BYTES = {
    "torch fused": 28,
    "smooth(.995)": 36,
    "Running": 28,
    "Fixed": 28,
    "auto() of the update": 36,
    "auto() of the gradient": 32,
    "no clip": 28,
}
_COUNT = LAYERS * sum(math.prod(shape) for shape in SHAPES)

Maker = Callable[[Any], torch.optim.Optimizer]
FUSED: dict[str, Maker] = {
    "torch fused": lambda p: torch.optim.AdamW(p, fused=True),
    "smooth(.995)": lambda p: AdamW(p, fused=True),
    "Running": lambda p: AdamW(p, fused=True, post=RUNNING),
    "Fixed": lambda p: AdamW(p, fused=True, post=FIXED),
    "auto() of the update": lambda p: AdamW(p, fused=True, post=auto()),
    "auto() of the gradient": lambda p: AdamW(p, fused=True, post=None, grad=auto()),
    "no clip": lambda p: AdamW(p, fused=True, post=None),
}
PLAIN: dict[str, Maker] = {
    "torch foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "smooth(.995)": lambda p: AdamW(p),
    "no clip": lambda p: AdamW(p, post=None),
}
MUON: dict[str, Maker] = {
    "no clip": lambda p: Muon(p, pre=None, fused=True),  # kernels on a GPU, on a CPU the plain step
    "smooth(.99)": lambda p: Muon(p, pre=smooth(0.99), fused=True),
}
# What our fused and plain steps should take at most, in units of torch's.
FUSED_LIMITS = {
    "smooth(.995)": 2.0,
    "Running": 1.6,
    "Fixed": 1.3,
    "auto() of the update": 2.5,
    "auto() of the gradient": 2.3,
    "no clip": 1.3,
}
PLAIN_LIMIT = 2.0
MUON_LIMIT = 1.1
HOST_LIMIT = 4.0
SMALL, SMALL_COUNT = (8, 8), 148  # as many parameters as GPT-2 small has, and next to nothing to compute


def run(device: str) -> Iterator[Result]:
    """Yield the costs of AdamW's steps beside torch's, and of Muon's clip beside Muon without."""
    fused = _timed(FUSED, device, rounds=31, warm_up=12)
    for name, limit in FUSED_LIMITS.items():
        line = cost(f"AdamW(fused=True), {name} / torch AdamW(fused=True)", fused[name], fused["torch fused"], limit)
        yield replace(line, detail=f"{line.detail}, {_throughput(name, fused):.3g} GB/s")
    yield _bandwidth(device, fused)
    yield _brackets(device)
    yield _host_work(device)
    plain = _timed(PLAIN, device, rounds=9)
    for name in ("smooth(.995)", "no clip"):
        yield cost(f"AdamW, {name} / torch AdamW(foreach=True)", plain[name], plain["torch foreach"], PLAIN_LIMIT)
    muon = _timed(MUON, device, rounds=5, matrices_only=True)
    yield cost("Muon, smooth(.99) / no clip", muon["smooth(.99)"], muon["no clip"], MUON_LIMIT)


def parameters() -> list[torch.nn.Parameter]:
    """Make the block matrices of some layers."""
    g = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(0.02 * torch.randn(shape, generator=g)) for shape in SHAPES * LAYERS]


def stepper(make: Maker, params: list[torch.nn.Parameter]) -> Callable[[], None]:
    """Return a step with one of several prepared gradients: fresh to the optimizer, free to the clock."""
    optimizer = make(params)
    gradients = fresh_gradients([tuple(p.shape) for p in params], params[0].device)

    def step() -> None:
        for p, gradient in zip(params, next(gradients), strict=True):
            p.grad = gradient
        optimizer.step()

    return step


def fresh_gradients(shapes: list[tuple[int, ...]], device: torch.device) -> Iterator[list[Tensor]]:
    """Yield views of long noise, at other places every step: new to the optimizer, and free to the clock."""
    for step in itertools.count():
        starts = [16 * ((7919 * step + 104729 * i) % (1 << 18)) for i in range(len(shapes))]
        places = zip(starts, shapes, strict=True)
        yield [_noise(step % 3, device)[start : start + math.prod(shape)].view(shape) for start, shape in places]


@functools.cache
def _noise(seed: int, device: torch.device) -> Tensor:
    return torch.randn(1 << 23, generator=torch.Generator().manual_seed(seed)).to(device)


def _timed(
    makers: dict[str, Maker], device: str, *, rounds: int, warm_up: int = 1, matrices_only: bool = False
) -> dict[str, float]:
    start = [p for p in parameters() if p.ndim == 2 or not matrices_only]
    on_device = [torch.nn.Parameter(p.detach().to(device)) for p in start]
    steps = {name: stepper(make, copy.deepcopy(on_device)) for name, make in makers.items()}
    return side_by_side(steps, rounds=rounds, warm_up=warm_up, device=device)


def _brackets(device: str) -> Result:
    """Return the share of quantiles that lay where the kernel looked for them, after some steps to get used to."""
    params = [torch.nn.Parameter(p.detach().to(device)) for p in parameters()[: len(SHAPES)]]
    optimizer = AdamW(params, fused=True)
    gradients, shares = fresh_gradients([tuple(p.shape) for p in params], params[0].device), []
    for step in range(40):
        for p, gradient in zip(params, next(gradients), strict=True):
            p.grad = gradient
        optimizer.step()
        kernel = optimizer._fused.get(0)
        if step >= 20 and isinstance(kernel, FusedGroup):
            shares.append(kernel.hit_share())
    share = sum(shares) / max(len(shares), 1)
    return Result("share of brackets that held the quantile", share, 0.9, True, f"{len(shares)} steps after the 20th")


def _host_work(device: str) -> Result:
    """Return what a step costs whose matrices are too small to matter: the host's work, which a GPU may wait for."""
    makers = {name: FUSED[name] for name in ("torch fused", "smooth(.995)")}
    params = [torch.nn.Parameter(torch.zeros(SMALL, device=device)) for _ in range(SMALL_COUNT)]
    steps = {name: stepper(make, copy.deepcopy(params)) for name, make in makers.items()}
    times = side_by_side(steps, rounds=31, warm_up=12, device=device)
    name = f"AdamW(fused=True), smooth(.995), {SMALL_COUNT} matrices of 8 x 8 / torch AdamW(fused=True)"
    return cost(name, times["smooth(.995)"], times["torch fused"], HOST_LIMIT)


def _throughput(name: str, fused: dict[str, float]) -> float:
    """Return the gigabytes a second that a fused step moves."""
    return _BYTES[name] * 1e-9 * _COUNT / fused[name]


def _bandwidth(device: str, fused: dict[str, float]) -> Result:
    """Return the memory throughput of torch's fused step beside that of a plain copy, which is the limit."""
    x, y = torch.empty(_COUNT, device=device), torch.empty(_COUNT, device=device)
    copied = side_by_side({"copy": lambda: y.copy_(x)}, rounds=9, device=device)["copy"]
    copy_speed, step_speed = 8e-9 * _COUNT / copied, _throughput("torch fused", fused)
    detail = f"{step_speed:.3g} GB/s against {copy_speed:.3g} GB/s of a copy"
    return Result("memory throughput, torch AdamW(fused=True) / copy", step_speed / copy_speed, None, True, detail)
