"""Quantiles of |x|: against torch.quantile, against numpy's bare selection, and over sizes."""

import functools
import tracemalloc
from collections.abc import Iterator

import numpy as np
import torch

import entryclip as ec

from .timing import Result, milliseconds, side_by_side

Q = 0.995


def run() -> Iterator[Result]:
    yield from against_torch_and_numpy()
    yield from ties()
    yield from over_sizes()
    yield from memory()


def against_torch_and_numpy() -> Iterator[Result]:
    x = torch.randn(768, 3072, generator=torch.Generator().manual_seed(0))
    flat, half = x.numpy().ravel(), x.bfloat16()
    k = int(Q * (x.numel() - 1))
    exact = float(np.quantile(np.abs(flat.astype(np.float64)), Q))
    assert abs(ec.quantile_abs(x, Q).item() - exact) <= 1e-7 * exact
    assert abs(torch.quantile(x.abs(), Q).item() - exact) <= 1e-6 * exact
    slow = side_by_side({"torch": lambda: torch.quantile(x.abs(), Q), "ours": lambda: ec.quantile_abs(x, Q)}, rounds=5)
    times = side_by_side(
        {
            "numpy": lambda: np.partition(flat, k),
            "cold": lambda: ec.quantile_abs(x, Q),
            "nonzero": lambda: ec.quantile_abs(x, Q, nonzero=True),
            "bf16": lambda: ec.quantile_abs(half, Q),
        },
        rounds=31,
    )
    shape = "768 x 3072 fp32, q = .995"
    detail = f"{milliseconds(slow['ours'])} against {milliseconds(slow['torch'])}"
    yield Result(f"quantile_abs over torch.quantile, {shape}", slow["torch"] / slow["ours"], 40, True, detail)
    for name, limit in (("cold", 1.5), ("nonzero", 1.5), ("bf16", 1.5)):
        detail = f"{milliseconds(times[name])} against {milliseconds(times['numpy'])}"
        yield Result(
            f"quantile_abs ({name}) / numpy.partition, {shape}", times[name] / times["numpy"], limit, False, detail
        )


def ties() -> Iterator[Result]:
    """Adam's first update has |u| = 1 but for rounding: few distinct values, on which numpy's selection is slow."""
    g = torch.randn(768, 3072, generator=torch.Generator().manual_seed(0))
    update = (0.1 * g / (1 - 0.9)) / ((0.001 * g * g / (1 - 0.999)).sqrt() + 1e-8)
    flat, k = update.numpy().ravel(), int(Q * (update.numel() - 1))
    assert abs(ec.quantile_abs(update, Q).item() - float(np.quantile(np.abs(flat.astype(np.float64)), Q))) < 1e-7
    times = side_by_side(
        {"numpy": lambda: np.partition(flat, k), "ours": lambda: ec.quantile_abs(update, Q)},
        rounds=9,
    )
    detail = f"{milliseconds(times['ours'])} against {milliseconds(times['numpy'])}"
    yield Result(
        "quantile_abs / numpy.partition, Adam's first update", times["ours"] / times["numpy"], 1.0, False, detail
    )


def over_sizes() -> Iterator[Result]:
    """Nanoseconds per entry from 2^16 to 2^27 entries, relative to 2^20."""
    cost = {}
    for bits in (16, 18, 20, 22, 24, 27):
        x = torch.randn(1 << bits, generator=torch.Generator().manual_seed(0))
        seconds = side_by_side({"ours": functools.partial(ec.quantile_abs, x, Q)}, rounds=21 if bits < 24 else 5)[
            "ours"
        ]
        cost[bits] = 1e9 * seconds / x.numel()
    detail = ", ".join(f"2^{bits}: {value:.2f}" for bits, value in cost.items()) + " ns per entry"
    yield Result("cost per entry, dearest size / cheapest", max(cost.values()) / min(cost.values()), 4, False, detail)


def memory() -> Iterator[Result]:
    """Peak of what numpy allocates for it; torch's own temporaries are 0-d."""
    for bits in (21, 24):
        x = np.random.default_rng(0).standard_normal(1 << bits).astype(np.float32)
        tracemalloc.start()
        ec.quantile_abs(x, Q)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        yield Result(f"extra memory / |x|, 2^{bits} entries", peak / x.nbytes, 1.01, False, f"{peak / 2**20:.1f} MiB")
