"""The whole clip as a user calls it, against the listing in the paper's appendix."""

from collections.abc import Iterator

import torch

import entryclip as ec

from .timing import Result, milliseconds, side_by_side


def papers_listing(x: torch.Tensor, q: float) -> torch.Tensor:
    """The paper's `smooth_shrinkage` (app:ss)."""
    c = torch.quantile(x.abs(), q)
    return x * torch.exp(-x.abs() / c.clamp(min=1e-12))


def run() -> Iterator[Result]:
    x = torch.randn(768, 3072, generator=torch.Generator().manual_seed(0))
    clip = ec.smooth(0.995)
    torch.testing.assert_close(clip(x), papers_listing(x, 0.995))
    times = side_by_side({"listing": lambda: papers_listing(x, 0.995), "ours": lambda: clip(x)}, rounds=7)
    detail = f"{milliseconds(times['ours'])} against {milliseconds(times['listing'])}"
    yield Result(
        "smooth(.995) over the paper's listing, 768 x 3072", times["listing"] / times["ours"], 10, True, detail
    )
