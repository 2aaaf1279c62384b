"""Optimizer steps on block matrices of GPT-2 small, with a fresh gradient each step, against torch's own."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

import entryclip as ec

from .timing import Result, milliseconds, side_by_side

LAYERS = 3  # of 12: the ratios do not depend on how many
SHAPES = [(3, 768, 768), (768, 768), (3072, 768), (768, 3072)]


def run() -> Iterator[Result]:
    yield from adamw()
    yield from muon()


def parameters() -> list[torch.nn.Parameter]:
    g = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(0.02 * torch.randn(shape, generator=g)) for shape in SHAPES * LAYERS]


def stepper(make: Callable[[Any], torch.optim.Optimizer], params: list[torch.nn.Parameter]) -> Callable[[], None]:
    """A step with one of several prepared gradients: fresh to the optimizer, free to the clock."""
    optimizer = make(params)
    g = torch.Generator().manual_seed(1)
    gradients = [[torch.randn(p.shape, generator=g) for p in params] for _ in range(2)]
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        for p, gradient in zip(params, gradients[count % 2], strict=True):
            p.grad = gradient
        optimizer.step()

    return step


def papers_adamw(params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The paper's two lines in an otherwise plain AdamW."""

    class Listing(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for p in self.param_groups[0]["params"]:
                state = self.state[p]
                if not state:
                    state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["t"] += 1
                state["m"].lerp_(p.grad, 0.1)
                state["v"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                u = state["m"] / (1 - 0.9 ** state["t"]) / ((state["v"] / (1 - 0.999 ** state["t"])).sqrt() + 1e-8)
                parts = u.unbind() if u.ndim == 3 else [u]
                c = [torch.quantile(part.abs(), 0.995) for part in parts]
                scale = torch.stack(c).reshape(-1, 1, 1) if u.ndim == 3 else c[0]
                p.mul_(1 - 1e-5).sub_(1e-3 * u * torch.exp(-u.abs() / scale.clamp(min=1e-12)))

    return Listing(params, {})


def adamw() -> Iterator[Result]:
    start = parameters()
    makers: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "torch foreach": lambda p: torch.optim.AdamW(p, foreach=True),
        "torch fused": lambda p: torch.optim.AdamW(p, fused=True),
        "smooth(.995)": lambda p: ec.optim.AdamW(p),
        "no clip": lambda p: ec.optim.AdamW(p, post=None),
        "fixed": lambda p: ec.optim.AdamW(p, post=ec.Clip(ec.smooth_shrinkage, ec.Fixed(1.0))),
    }
    results = {name: copy.deepcopy(start) for name in [*makers, "listing"]}
    steps = {name: stepper(make, results[name]) for name, make in makers.items()}
    listing = stepper(papers_adamw, results["listing"])
    for function in (steps["smooth(.995)"], listing):
        function()
        function()
    for ours, theirs in zip(results["smooth(.995)"], results["listing"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    slow = side_by_side({"listing": listing, "ours": steps["smooth(.995)"]}, rounds=2)
    times = side_by_side(steps, rounds=9)
    base = times["torch foreach"]
    for name, limit in (("smooth(.995)", 2.0), ("fixed", 2.0), ("no clip", 2.0)):
        detail = f"{milliseconds(times[name])} against {milliseconds(base)}"
        yield Result(f"AdamW, {name} / torch AdamW(foreach=True)", times[name] / base, limit, False, detail)
    detail = f"{milliseconds(slow['ours'])} against {milliseconds(slow['listing'])}"
    yield Result("AdamW, smooth(.995) over the paper's listing", slow["listing"] / slow["ours"], 10, True, detail)


def muon() -> Iterator[Result]:
    """torch's algorithm in the same precision, its bf16 cast taken out, and torch's own as shipped."""
    start = [p for p in parameters() if p.ndim == 2]
    original = torch.Tensor.bfloat16
    results = {name: copy.deepcopy(start) for name in ("torch", "shipped", "plain", "clipped")}
    shipped = stepper(lambda p: torch.optim.Muon(p), results["shipped"])
    same = stepper(lambda p: torch.optim.Muon(p), results["torch"])

    def in_fp32() -> None:
        torch.Tensor.bfloat16 = lambda x: x.clone()  # type: ignore[method-assign]
        try:
            same()
        finally:
            torch.Tensor.bfloat16 = original  # type: ignore[method-assign]

    plain = stepper(lambda p: ec.optim.Muon(p, pre=None), results["plain"])
    clipped = stepper(lambda p: ec.optim.Muon(p), results["clipped"])
    clip, g = ec.smooth(0.99), torch.Generator().manual_seed(2)
    momenta = [torch.randn(p.shape, generator=g) for p in start]
    alone = {"clip": lambda: [clip(m) for m in momenta]}
    times = side_by_side({"torch": in_fp32, "plain": plain, "clipped": clipped, **alone}, rounds=5)
    for ours, theirs in zip(results["plain"], results["torch"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    as_shipped = side_by_side({"shipped": shipped, "clipped": clipped}, rounds=2)
    detail = f"{milliseconds(times['plain'])} against {milliseconds(times['torch'])}"
    yield Result("Muon, no clip / torch's algorithm in fp32", times["plain"] / times["torch"], 1.05, False, detail)
    detail = f"{milliseconds(times['clip'])} of {milliseconds(times['clipped'])}"
    yield Result("Muon, share of the step in the pre-clip", times["clip"] / times["clipped"], 0.04, False, detail)
    detail = f"{milliseconds(as_shipped['clipped'])} against {milliseconds(as_shipped['shipped'])}"
    ratio = as_shipped["shipped"] / as_shipped["clipped"]
    yield Result("Muon, smooth(.99) over torch.optim.Muon as shipped", ratio, 2, True, detail)
