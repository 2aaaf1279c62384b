"""Checks that a user can run on hardware that ours have never seen; each names what it compared and what it found."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ...clip import Clip, auto, smooth
from ...operators import hard_clip, smooth_shrinkage
from ...optim import AdamW, Muon
from ...quantiles.quantile import quantile_abs
from ...thresholds import Fixed, FollowLR, Quantile, Running, Scale
from .graph_replay import replays_equal
from .proof import Proof

LEVELS = (1e-6, 0.5, 0.9, 0.99, 0.995, 1.0)
SIZES = (1, 2, 3, 511, 4097)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
RULES = (Quantile(0.995), Scale(4.0), Fixed(0.7), FollowLR(Fixed(1.0), base_lr=1e-2), Running(Quantile(0.99), beta=0.9))
CLIPS = (None, *(Clip(operator, rule) for operator in (smooth_shrinkage, hard_clip) for rule in RULES))
SHAPES = ((96, 130), (3, 64, 70), (7, 5), (33,))
_TOLERANCE = 2e-6  # of a step against the plain path on the host, relative to the largest weight
_AUTO_TOLERANCE = 1e-5  # the same of auto(): by rounding an entry may fall into the next bin of its sketch


def run(device: str) -> Iterator[Proof]:
    """Yield the outcome of every check on a device, "cpu" or "cuda"."""
    yield quantiles_equal(device)
    for name, fused in (("plain", False), ("fused", True)):
        yield steps_equal(device, name, fused=fused)
        yield auto_agrees(device, name, fused=fused)
        yield steps_repeat(device, name, fused=fused)
        yield muon_agrees(device, name, fused=fused)
    yield replays_equal(device)


def quantiles_equal(device: str) -> Proof:
    """Compare quantiles of tensors with ties, zeros, subnormals, inf and NaN with those of the host, to the bit."""
    cases = [(x, q) for dtype in DTYPES for n in SIZES for x in _edge_cases(n, dtype) for q in LEVELS]
    wrong = [
        (tuple(x.shape), x.dtype, q)
        for x, q in cases
        if not _same(quantile_abs(x.to(device), q, nonzero=True).cpu(), quantile_abs(x, q, nonzero=True))
    ]
    return Proof(
        "quantiles equal the host's to the bit", not wrong, f"{len(cases)} cases, {len(wrong)} differ {wrong[:2]}"
    )


def steps_equal(device: str, name: str, *, fused: bool) -> Proof:
    """Compare ten steps of AdamW with every operator and rule but `Auto` with the plain path on the host."""
    options = {str(clip): {"lr": 1e-2, "post": clip} for clip in CLIPS}
    worst, detail = _largest_error(device, options, fused)
    return Proof(f"AdamW, {name}: steps equal the plain path's on the host", worst <= _TOLERANCE, detail)


def auto_agrees(device: str, name: str, *, fused: bool) -> Proof:
    """Compare ten steps of AdamW with `auto()` on the gradient and on the update with the plain path on the host."""
    common = {"lr": 1.0, "eps": 100.0, "post": None}  # so large that the update has the tails of the gradients
    options = {
        f"{stage} {clip}": {**common, stage: clip}
        for stage in ("grad", "post")
        for clip in map(auto, (smooth_shrinkage, hard_clip))
    }
    worst, detail = _largest_error(device, options, fused, heavy=True)
    return Proof(
        f"AdamW, auto(), {name}: steps agree with the plain path's on the host", worst <= _AUTO_TOLERANCE, detail
    )


def _largest_error(
    device: str, cases: Mapping[str, Mapping[str, Any]], fused: bool, *, heavy: bool = False
) -> tuple[float, str]:
    """Compare AdamW with each set of options on a device with the plain path on the host: where does it err most?"""
    worst, at = 0.0, "none"
    for case, options in cases.items():
        theirs = _trained("cpu", functools.partial(AdamW, **options), heavy=heavy)
        ours = _trained(device, functools.partial(AdamW, **options, fused=fused), heavy=heavy)
        for a, b in zip(ours, theirs, strict=True):
            error = float((a.cpu() - b).abs().max() / b.abs().max())
            worst, at = max((worst, at), (error if error == error else math.inf, case))
    return worst, f"{len(cases)} clips, largest relative error {worst:.1e} ({at})"


def steps_repeat(device: str, name: str, *, fused: bool) -> Proof:
    """Run the same steps twice and compare all bits."""
    runs = [_trained(device, functools.partial(AdamW, lr=1e-2, fused=fused)) for _ in range(2)]
    same = all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    return Proof(f"AdamW, {name}: two runs give the same bits", same, f"{len(SHAPES)} parameters, 10 steps")


def muon_agrees(device: str, name: str, *, fused: bool) -> Proof:
    """Compare Muon's clipped steps in fp32 with the plain path on the host."""

    def make(params: list[Tensor], fused: bool = False) -> Muon:
        return Muon(params[:3], lr=0.02, pre=smooth(0.99), precision=torch.float32, fused=fused)

    ours, theirs = _trained(device, functools.partial(make, fused=fused)), _trained("cpu", make)
    worst = max(float((a.cpu() - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    return Proof(
        f"Muon, smooth(.99), {name}: steps agree with the host's", worst < 1e-3, f"largest difference {worst:.1e}"
    )


def _edge_cases(n: int, dtype: torch.dtype) -> list[Tensor]:
    """Return tensors of n entries on which selection goes wrong easily."""
    g = torch.Generator().manual_seed(n)
    plain = torch.randn(n, generator=g)
    sparse = plain * (torch.rand(n, generator=g) < 0.3)
    infinite, undefined = plain.clone(), plain.clone()
    infinite[0], undefined[0] = -math.inf, math.nan
    made = [plain, plain.round(), sparse, 0 * plain, plain * 1e-39, infinite, undefined]
    return [x.to(dtype) for x in made]


def _same(a: Tensor, b: Tensor) -> bool:
    return bool(torch.equal(a, b) or (torch.isnan(a) & torch.isnan(b)).all())


def _trained(
    device: str, make: Callable[[list[Tensor]], torch.optim.Optimizer], *, heavy: bool = False
) -> list[Tensor]:
    """Return the parameters after ten steps with given gradients, with a spike and a column of zeros each.

    heavy   whether the other entries have heavy tails
    """
    g = torch.Generator().manual_seed(0)
    params: list[Tensor] = [torch.nn.Parameter(torch.randn(shape, generator=g).to(device)) for shape in SHAPES]
    optimizer = make(params)
    for step in range(10):
        for p in params:
            drawn = (1 + step % 3) * torch.randn(p.shape, generator=g)
            drawn *= torch.randn(p.shape, generator=g).mul(2).exp() if heavy else 1
            if p.ndim > 1:
                drawn.view(-1)[0], drawn[..., -1:] = 1e4, 0.0
            p.grad = drawn.to(device)
        optimizer.step()
    return [p.detach() for p in params]
