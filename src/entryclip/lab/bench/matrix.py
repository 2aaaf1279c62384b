"""Matrix functions: the exact matrix sign against a batched SVD, the leading triplets against a full one."""

import functools
from collections.abc import Iterator

import torch

import entryclip as ec

from ...matrix.iterations import iterate, minimax_quintics
from .timing import Result, milliseconds, side_by_side


def run() -> Iterator[Result]:
    yield from sign_of_many_small()
    yield from leading_triplets()
    yield from soft_clip()
    yield from precision()
    yield from half_precision()


def sign_of_many_small() -> Iterator[Result]:
    x = torch.randn(1000, 32, 32, generator=torch.Generator().manual_seed(0))
    u, _, vh = torch.linalg.svd(x.double())
    error = torch.linalg.matrix_norm(ec.msign(x, "exact").double() - u @ vh).median().item()
    assert error < 1e-5, error
    times = side_by_side(
        {"svd": lambda: torch.linalg.svd(x, full_matrices=False), "exact": lambda: ec.msign(x, "exact")}, rounds=7
    )
    detail = f"{milliseconds(times['exact'])} against {milliseconds(times['svd'])}, median error {error:.1e}"
    yield Result(
        "msign(exact) over torch.linalg.svd, 1000 of 32 x 32", times["svd"] / times["exact"], 2.5, True, detail
    )


def leading_triplets() -> Iterator[Result]:
    for shape, limit in (((768, 768), 3.0), ((768, 3072), 2.0)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        top = ec.top_singular(x, 8)
        exact = torch.linalg.svdvals(x)
        worst = top.residual.max().item()
        assert worst < 1e-3, worst
        assert ((top.s - exact[:8]).abs() < 1e-4 * exact[0]).all()
        times = side_by_side(
            {
                "svd": functools.partial(torch.linalg.svd, x, full_matrices=False),
                "top": functools.partial(ec.top_singular, x, 8),
            },
            rounds=7,
        )
        detail = f"{milliseconds(times['top'])} against {milliseconds(times['svd'])}, worst residual {worst:.1e}"
        name = f"top_singular(k=8) over torch.linalg.svd, {shape[0]} x {shape[1]} Gaussian"
        yield Result(name, times["svd"] / times["top"], limit, True, detail)


def soft_clip() -> Iterator[Result]:
    """A typical ratio for SPECTRA, sigma_max/c = 5. On a CPU an SVD is as fast; the iteration is made for devices."""
    x = torch.randn(768, 768, generator=torch.Generator().manual_seed(0))
    c = float(torch.linalg.matrix_norm(x, 2)) / 5

    def by_svd() -> torch.Tensor:
        u, s, vh = torch.linalg.svd(x, full_matrices=False)
        return (u * (s / torch.sqrt(1 + (s / c) ** 2))) @ vh

    assert torch.linalg.matrix_norm(by_svd() - ec.soft_spectral_clip(x, c), 2) < 1e-3 * c
    times = side_by_side({"svd": by_svd, "ours": lambda: ec.soft_spectral_clip(x, c)}, rounds=7)
    detail = f"{milliseconds(times['ours'])} against {milliseconds(times['svd'])}"
    yield Result("soft_spectral_clip over torch.linalg.svd, 768 x 768", times["svd"] / times["ours"], 0.5, True, detail)


def precision() -> Iterator[Result]:
    """What the docs say about accuracy: why `exact` is not one long minimax schedule, nor the soft clip an SVD."""
    x = torch.randn(1000, 32, 32, generator=torch.Generator().manual_seed(0))
    u, _, vh = torch.linalg.svd(x.double())
    unit = x / torch.linalg.matrix_norm(x, keepdim=True)
    schedule = minimax_quintics(1e-6, 1e-7)
    long, ours = (
        torch.linalg.matrix_norm(sign.double() - u @ vh).median().item()
        for sign in (iterate(unit, schedule), ec.msign(x, "exact"))
    )
    detail = f"median errors {ours:.1e} and {long:.1e}"
    yield Result(
        f"error of msign(exact) / of {len(schedule)} minimax steps, 1000 of 32 x 32", ours / long, 0.5, False, detail
    )

    u, _, vh = torch.linalg.svd(torch.randn(256, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    s, c = torch.logspace(0, -6, 256, dtype=torch.float64), 1e-4
    matrix, exact = (u * s) @ vh, (u * (s / torch.sqrt(1 + (s / c) ** 2))) @ vh
    a, b, d = torch.linalg.svd(matrix.float(), full_matrices=False)
    by_svd, ours = (
        torch.linalg.matrix_norm(clipped.double() - exact, 2).item() / c
        for clipped in ((a * (b / torch.sqrt(1 + (b / c) ** 2))) @ d, ec.soft_spectral_clip(matrix.float(), c))
    )
    assert ours < 1e-3, ours
    name = "error of soft_spectral_clip / of an fp32 SVD, sigma_max/c = 1e4, 256 x 256"
    yield Result(name, ours / by_svd, 0.5, False, f"errors {ours:.1e} c and {by_svd:.1e} c")


def half_precision() -> Iterator[Result]:
    """Why msign iterates in fp32 on a CPU."""
    x = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    half = x.bfloat16()
    times = side_by_side({"fp32": lambda: x @ x, "bf16": lambda: half @ half}, rounds=7)
    detail = f"{milliseconds(times['bf16'])} against {milliseconds(times['fp32'])} on this CPU, which has no bf16 units"
    yield Result("bf16 product / fp32 product, 512 x 512", times["bf16"] / times["fp32"], 2, True, detail)
