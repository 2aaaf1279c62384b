"""The whole clip as a user calls it, against the listing in the paper's appendix."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

import entryclip as ec

from .timing import Result, milliseconds, side_by_side


def papers_listing(x: torch.Tensor, q: float) -> torch.Tensor:
    """The paper's `smooth_shrinkage` (app:ss)."""
    c = torch.quantile(x.abs(), q)
    return x * torch.exp(-x.abs() / c.clamp(min=1e-12))


def run() -> Iterator[Result]:
    yield from whole_clip()
    yield from operator_alone()


def whole_clip() -> Iterator[Result]:
    x = torch.randn(768, 3072, generator=torch.Generator().manual_seed(0))
    clip = ec.smooth(0.995)
    torch.testing.assert_close(clip(x), papers_listing(x, 0.995))
    times = side_by_side({"listing": lambda: papers_listing(x, 0.995), "ours": lambda: clip(x)}, rounds=7)
    detail = f"{milliseconds(times['ours'])} against {milliseconds(times['listing'])}"
    yield Result(
        "smooth(.995) over the paper's listing, 768 x 3072", times["listing"] / times["ours"], 10, True, detail
    )


def operator_alone() -> Iterator[Result]:
    """Against the formula as one would write it, which has none of the limits."""
    x, c = torch.randn(768, 3072, generator=torch.Generator().manual_seed(0)), torch.tensor(2.8)
    cases: tuple[tuple[str, Callable[..., Any], Callable[[], torch.Tensor]], ...] = (
        ("smooth_shrinkage", ec.smooth_shrinkage, lambda: x * torch.exp(-x.abs() / c)),
        ("hard_clip", ec.hard_clip, lambda: x.clamp(-c, c)),
    )
    for name, ours, formula in cases:
        torch.testing.assert_close(ours(x, c), formula())
        times = side_by_side({"formula": formula, "ours": functools.partial(ours, x, c)}, rounds=21)
        detail = f"{milliseconds(times['ours'])} against {milliseconds(times['formula'])}"
        yield Result(f"{name} / its bare formula, 768 x 3072", times["ours"] / times["formula"], 1.1, False, detail)
