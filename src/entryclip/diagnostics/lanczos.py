"""The leading singular triplet of one matrix, fast: what a probe can afford for every sample of every matrix."""

import functools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_STEPS = (8, 12, 24)  # the last are for flat spectra: sigma_1 of Gaussian noise to 1e-5 at 768 x 768
_CLOSE = 1e-4  # the residual, relative to sigma_1^2, at which fewer are enough: sigma_1 itself is far closer
_SMALL = 48  # the shorter side up to which an SVD is cheaper


class Triplet(NamedTuple):
    """x v = sigma u, nearly."""

    u: Tensor  # (m,)
    sigma: float
    v: Tensor  # (n,)


def leading_triplet(x: Tensor) -> Triplet:
    """By Lanczos steps on x^T x from one random vector, always the same, with all vectors kept orthogonal.

    sigma is never too large. `top_singular` gives residuals with its triplets and takes several times as long.

    >>> x = torch.randn(200, 300, generator=torch.Generator().manual_seed(0))
    >>> x[7, 9] = 100.0
    >>> top = leading_triplet(x)
    >>> round(top.sigma, 2), int(top.u.abs().argmax()), int(top.v.abs().argmax())
    (102.45, 7, 9)
    """
    if min(x.shape) <= _SMALL:
        left, s, right = torch.linalg.svd(x, full_matrices=False)
        return Triplet(left[:, 0], float(s[0]), right[0])
    if x.shape[0] < x.shape[1]:
        v, sigma, u = leading_triplet(x.mT)
        return Triplet(u, sigma, v)
    basis, image = x.new_empty(_STEPS[-1] + 1, x.shape[1]), x.new_empty(_STEPS[-1], x.shape[0])
    basis[0] = _start(x.shape[1]).to(x)
    done = 0
    for steps in _STEPS:
        for i in range(done, steps):
            torch.mv(x, basis[i], out=image[i])
            left = _orthogonal_(torch.mv(x.mT, image[i], out=basis[i + 1]), basis[: i + 1])
        done = steps
        values, ritz = torch.linalg.eigh(image[:done] @ image[:done].mT)
        if bool(left * ritz[-1, -1].abs() <= _CLOSE * values[-1]):
            break
    u = image[:done].mT @ ritz[:, -1]
    sigma = torch.linalg.vector_norm(u)
    return Triplet(u / torch.where(sigma == 0, 1.0, sigma), float(sigma), basis[:done].mT @ ritz[:, -1])


@functools.lru_cache(64)
def _start(size: int) -> Tensor:
    """A unit vector."""
    drawn = torch.from_numpy(np.random.default_rng(0).standard_normal(size))
    return drawn / torch.linalg.vector_norm(drawn)


def _orthogonal_(w: Tensor, basis: Tensor) -> Tensor:
    """Make `w` its part outside of the basis, with length 1, and return the length it had; what is rounding becomes 0.

    Twice, as once leaves a trace of the old basis (Giraud et al. 2005).
    """
    before = torch.linalg.vector_norm(w)
    for _ in range(2):
        w.addmv_(basis.mT, basis @ w, alpha=-1)
    left = torch.linalg.vector_norm(w)
    real = left > 100 * torch.finfo(w.dtype).eps * before
    w.mul_(torch.where(real, 1 / left, 0.0))
    return torch.where(real, left, 0.0)
