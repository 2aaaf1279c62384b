"""The leading singular triplet of one matrix, fast: what a probe can afford for every sample of every matrix."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_STEPS = 24  # sigma_1 of Gaussian noise to 1e-5 at 768 x 768; of anything with a spike to rounding
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
    basis = x.new_empty(_STEPS, x.shape[1])
    image = x.new_empty(_STEPS, x.shape[0])
    start = torch.as_tensor(np.random.default_rng(0).standard_normal(x.shape[1]), dtype=x.dtype, device=x.device)
    basis[0] = start / torch.linalg.vector_norm(start)
    for i in range(_STEPS):
        torch.mv(x, basis[i], out=image[i])
        if i + 1 < _STEPS:
            basis[i + 1] = _orthogonal(x.mT @ image[i], basis[: i + 1])
    ritz = torch.linalg.eigh(image @ image.mT)[1][:, -1]
    u = image.mT @ ritz
    sigma = torch.linalg.vector_norm(u)
    return Triplet(u / torch.where(sigma == 0, 1.0, sigma), float(sigma), basis.mT @ ritz)


def _orthogonal(w: Tensor, basis: Tensor) -> Tensor:
    """The part of `w` outside of the basis, of length 1; or 0 where all that is left of it is rounding."""
    before = torch.linalg.vector_norm(w)
    for _ in range(2):  # once leaves a trace of the old basis, twice is enough (Giraud et al. 2005)
        w = w - basis.mT @ (basis @ w)
    left = torch.linalg.vector_norm(w)
    rounding = 100 * torch.finfo(w.dtype).eps * before
    return torch.where(left > rounding, w / torch.where(left > 0, left, 1.0), 0.0)
