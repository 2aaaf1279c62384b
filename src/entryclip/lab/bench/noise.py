"""What the noise tools promise in seconds: a fit of 10^7 entries, the posterior mean of 10^6."""

import functools
from collections.abc import Iterator

import numpy as np
import torch

import entryclip as ec

from .timing import Result, milliseconds, side_by_side


def run() -> Iterator[Result]:
    yield from fit()
    yield from posterior_mean()


def fit() -> Iterator[Result]:
    noise = ec.noise.Contamination(0.05, 1.0, ec.noise.Cauchy(3.0))
    x = noise.sample((10**7,), torch.Generator().manual_seed(0))
    assert abs(ec.noise.fit(x).alpha_gamma.value - 0.15) < 0.005
    for name, nu in (("Cauchy", 1.0), ("nu fitted", None)):
        seconds = side_by_side({"ours": functools.partial(ec.noise.fit, x, nu=nu)}, rounds=5)["ours"]
        yield Result(f"noise.fit of 10^7 entries ({name}) / 0.3 s", seconds / 0.3, 1, False, milliseconds(seconds))


def posterior_mean() -> Iterator[Result]:
    from ...noise.heavy import _table

    def cold(nu: float) -> None:
        _table.cache_clear()  # the table's making counts
        ec.noise.posterior_mean(y, 1.0, ec.noise.Contamination(0.05, 1.0, ec.noise.StudentT(nu)))

    y = torch.from_numpy(np.random.default_rng(0).standard_cauchy(10**6))
    for nu in (1.0, 2.2, 30.0):
        seconds = side_by_side({"ours": functools.partial(cold, nu)}, rounds=5)["ours"]
        name = f"posterior_mean of 10^6 entries (nu = {nu:g}) / 1 s"
        yield Result(name, seconds, 1, False, milliseconds(seconds))
