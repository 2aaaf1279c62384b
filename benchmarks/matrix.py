"""Matrix functions: the exact matrix sign against a batched SVD, the leading triplets against a full one."""

from collections.abc import Iterator

import torch

import entryclip as ec

from .timing import Result, milliseconds, side_by_side


def run() -> Iterator[Result]:
    yield from sign_of_many_small()
    yield from leading_triplets()
    yield from soft_clip()


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
            {"svd": lambda x=x: torch.linalg.svd(x, full_matrices=False), "top": lambda x=x: ec.top_singular(x, 8)},
            rounds=7,
        )
        detail = f"{milliseconds(times['top'])} against {milliseconds(times['svd'])}, worst residual {worst:.1e}"
        name = f"top_singular(k=8) over torch.linalg.svd, {shape[0]} x {shape[1]} Gaussian"
        yield Result(name, times["svd"] / times["top"], limit, True, detail)


def soft_clip() -> Iterator[Result]:
    """A typical ratio for SPECTRA, sigma_max/c = 5. On a CPU an SVD is about as fast; the iteration is made for devices."""
    x = torch.randn(768, 768, generator=torch.Generator().manual_seed(0))
    c = float(torch.linalg.matrix_norm(x, 2)) / 5

    def by_svd() -> torch.Tensor:
        u, s, vh = torch.linalg.svd(x, full_matrices=False)
        return (u * (s / torch.sqrt(1 + (s / c) ** 2))) @ vh

    assert torch.linalg.matrix_norm(by_svd() - ec.soft_spectral_clip(x, c), 2) < 1e-3 * c
    times = side_by_side({"svd": by_svd, "ours": lambda: ec.soft_spectral_clip(x, c)}, rounds=7)
    detail = f"{milliseconds(times['ours'])} against {milliseconds(times['svd'])}"
    yield Result("soft_spectral_clip over torch.linalg.svd, 768 x 768", times["svd"] / times["ours"], 0.5, True, detail)
