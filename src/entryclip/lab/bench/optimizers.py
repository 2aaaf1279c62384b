"""Optimizer steps on block matrices of GPT-2 small, with a fresh gradient each step, against torch's own."""

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

import entryclip as ec

from ...optim.finite import seen_finite
from . import steps
from .steps import parameters, stepper
from .timing import Result, cost, gain, milliseconds, side_by_side


def run() -> Iterator[Result]:
    yield from adamw()
    yield from small_matrices()
    yield from muon()


def papers_adamw(params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The paper's two lines in an otherwise plain AdamW."""

    class Listing(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
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
    yield from (result for result in steps.run("cpu") if result.name.startswith("AdamW"))
    start = parameters()
    ours, theirs = copy.deepcopy(start), copy.deepcopy(start)
    candidates = {"listing": stepper(papers_adamw, theirs), "ours": stepper(ec.optim.AdamW, ours)}
    slow = side_by_side(candidates, rounds=2)
    assert_same(ours, theirs)
    yield gain("AdamW, smooth(.995) over the paper's listing", slow["ours"], slow["listing"], 10)
    check_fused_equals_plain(start)


def small_matrices() -> Iterator[Result]:
    """Thousands of them, as adapters and experts have: here the calls count, not the memory."""
    start = [torch.nn.Parameter(torch.ones(8, 8)) for _ in range(10_000)]
    makers: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "torch": lambda p: torch.optim.AdamW(p, foreach=True),
        "smooth(.995)": ec.optim.AdamW,
        "Running": lambda p: ec.optim.AdamW(p, post=steps.RUNNING),
        "smooth(.995), fused=True": lambda p: ec.optim.AdamW(p, fused=True),
    }
    candidates = {name: stepper(make, copy.deepcopy(start)) for name, make in makers.items()}
    times = side_by_side(candidates, rounds=5, warm_up=2)
    for name in list(makers)[1:]:
        line = f"AdamW, {name} / torch AdamW(foreach=True), 10,000 of 8 x 8"
        yield cost(line, times[name], times["torch"], 3.0)


def check_fused_equals_plain(start: list[torch.nn.Parameter]) -> None:
    results = []
    for fused in (False, True):
        params = copy.deepcopy(start)
        step = stepper(functools.partial(ec.optim.AdamW, fused=fused), params)
        for _ in range(4):
            step()
        results.append(params)
    assert_same(*results)


def assert_same(ours: list[torch.nn.Parameter], theirs: list[torch.nn.Parameter]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def muon() -> Iterator[Result]:
    """torch's algorithm in the same precision, its bf16 cast taken out, and torch's own as shipped."""
    start = [p for p in parameters() if p.ndim == 2]
    original = torch.Tensor.bfloat16
    results = {name: copy.deepcopy(start) for name in ("torch", "shipped", "plain", "clipped")}
    shipped = stepper(lambda p: torch.optim.Muon(p), results["shipped"])
    same = stepper(lambda p: torch.optim.Muon(p), results["torch"])

    def in_fp32() -> None:
        torch.Tensor.bfloat16 = lambda x: x.clone()  # type: ignore[method-assign, assignment]
        try:
            same()
        finally:
            torch.Tensor.bfloat16 = original  # type: ignore[method-assign]

    plain = stepper(lambda p: ec.optim.Muon(p, pre=None), results["plain"])
    clipped = stepper(lambda p: ec.optim.Muon(p), results["clipped"])
    clip, g = ec.smooth(0.99), torch.Generator().manual_seed(2)
    momenta = [torch.randn(p.shape, generator=g) for p in start]
    fresh = iter([[m.clone() for m in momenta] for _ in range(6)])  # it acts in place, as in the step
    alone = {"clip": lambda: [clip.update_(m, {}, finite=seen_finite(m)) for m in next(fresh)]}
    times = side_by_side({"torch": in_fp32, "plain": plain, "clipped": clipped, **alone}, rounds=5)
    for ours, theirs in zip(results["plain"], results["torch"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    as_shipped = side_by_side({"shipped": shipped, "clipped": clipped}, rounds=2)
    yield cost("Muon, no clip / torch's algorithm in fp32", times["plain"], times["torch"], 1.05)
    detail = f"{milliseconds(times['clip'])} of {milliseconds(times['clipped'])}"
    yield Result("Muon, share of the step in the pre-clip", times["clip"] / times["clipped"], 0.04, False, detail)
    yield gain("Muon, smooth(.99) over torch.optim.Muon as shipped", as_shipped["clipped"], as_shipped["shipped"], 2)
