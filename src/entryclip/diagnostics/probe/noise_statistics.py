"""Statistics of one matrix's gradient noise, accumulated sample by sample: they never grow with the matrix.

Every sample is measured in units of its own scale, the median of its non-zero |E_ij| over 0.6745 (sigma, for Gaussian
noise): samples differ in size, and a mixture of Gaussians of many sizes would pass for a heavy tail. For the same
reason the entries are also measured in units of the scales of their row and column (standardized.py).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...matrix.singular import leading_triplet
from ...quantiles.quantile import quantile_abs
from ..directions import Directions
from .marginal import Marginal
from .standardized import DOMINANT, DetectedSpike, StandardizedStatistics

_PIECE = 1 << 17  # entries worked on at a time: what stays in the cache


class DirectionTensors(NamedTuple):
    """The vectors of singular directions as tensors on the device of the gradients."""

    u: Tensor  # (m, count)
    v: Tensor  # (n, count)

    @classmethod
    def of(cls, directions: Directions, like: Tensor) -> "DirectionTensors":
        """Convert `directions` to the dtype and device of `like`."""
        u, v = (torch.as_tensor(side, dtype=like.dtype, device=like.device) for side in (directions.u, directions.v))
        return cls(u, v)


@dataclass
class NoiseStatistics:
    """Accumulates the statistics of one matrix: `add` each gradient of the second half, then read the fields.

    directions          the signal's, by the median of block means
    plain_directions    those of the plain mean of all samples, the paper's estimator
    """

    directions: DirectionTensors
    plain_directions: DirectionTensors
    samples: list[int] = field(default_factory=list)  # numbers of the samples that have noise in this matrix
    silent: int = 0  # samples without any noise in this matrix
    projections: list[np.ndarray] = field(default_factory=list)  # (2, count) per sample: r and r_max
    plain_projections: list[np.ndarray] = field(default_factory=list)  # the same by the paper's estimator
    largest: list[float] = field(default_factory=list)  # max |E_ij|
    sigma: list[float] = field(default_factory=list)  # sigma_1(E)
    scale: list[float] = field(default_factory=list)
    square: list[float] = field(default_factory=list)  # ||E||_F^2
    balance: list[float] = field(default_factory=list)  # share of tail entries with the sign of G less share against it
    spikes: list[DetectedSpike] = field(default_factory=list)
    marginal: Marginal = field(default_factory=Marginal)  # of E in scales
    standardized: StandardizedStatistics = field(default_factory=StandardizedStatistics)

    def add(self, sample: int, g: Tensor, center: Tensor, mean: Tensor, positive: Tensor) -> None:
        """Add one gradient `g`, (m, n).

        center      the robust center of its half, (m, n)
        mean        the plain mean of all samples, the paper's G, (m, n)
        positive    where the signal is positive, (m, n)
        """
        noise = g - center
        row_maxima = noise.abs().amax(1)
        row = int(row_maxima.argmax())
        top = float(row_maxima[row])
        if top == 0:
            self.silent += 1
            return
        noise /= top
        self.samples.append(sample)
        self.largest.append(top)
        square = _squared_norm(noise)
        self.square.append(square * top**2)
        self.projections.append(_projections(noise, self.directions, square))
        scale = max(float(quantile_abs(noise, 0.5, nonzero=True)) / 0.6745, 1e-30)  # 1/scale must be finite in fp32
        self.scale.append(scale * top)
        self._add_spectrum(sample, noise, row, top=top, scale=scale)
        self._add_marginal(noise.div_(scale), positive)
        self.standardized.add_(sample, noise)
        del noise
        self._add_plain(g - mean)

    def _add_spectrum(self, sample: int, noise: Tensor, row: int, *, top: float, scale: float) -> None:
        """Add sigma_1, and a spike where the largest entry, which is in this row, carries more than half of it."""
        u, sigma, v = leading_triplet(noise)
        column = int(noise[row].abs().argmax())
        share = float((u[row] * noise[row, column] * v[column]).abs()) / sigma
        self.sigma.append(sigma * top)
        if share > DOMINANT:
            self.spikes.append(DetectedSpike(sample, row, column, share, 1 / scale))

    def _add_marginal(self, noise: Tensor, positive: Tensor) -> None:
        """Add the histogram of the entries, in scales, the largest of them, and the balance of their signs."""
        far, beyond = self.marginal.add(noise)
        most = far.abs().topk(min(len(far), -(-noise.numel() // 100))).indices  # 1 % at most: heavy tails have more
        if len(most) >= 10:
            agrees = (far[most] > 0) == positive.reshape(-1)[beyond[most]]
            self.balance.append(float(agrees.double().mean()) * 2 - 1)

    def _add_plain(self, noise: Tensor) -> None:
        """Add the projections of the paper's noise, gradient less plain mean, along the directions of that mean."""
        top = float(noise.abs().amax())
        if top > 0:
            noise /= top
            self.plain_projections.append(_projections(noise, self.plain_directions, _squared_norm(noise)))

    def extremes(self) -> np.ndarray:
        """Return max |E_ij| and sigma_1(E) of each sample, (2, samples)."""
        return np.array([self.largest, self.sigma])


def _squared_norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2


def _projections(noise: Tensor, directions: DirectionTensors, square: float) -> np.ndarray:
    """Return r and r_max along each direction, (2, count) (Eq. localization_metric); `square` is ||E||_F^2."""
    along = ((noise @ directions.v) * directions.u).sum(0, dtype=torch.float64)
    most = _largest_terms(noise, directions.u.abs(), directions.v.abs()).double()
    return (torch.stack([along, most]) ** 2 / square).cpu().numpy()


def _largest_terms(noise: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Return max_ij u_i |E_ij| v_j for each column of u and v, in pieces of rows that stay in the cache."""
    if not v.shape[1]:
        return noise.new_zeros(0)
    rows = max(1, _PIECE // noise.shape[1])
    most = []
    for start in range(0, noise.shape[0], rows):
        part = noise[start : start + rows].abs()
        product, row_maxima = torch.empty_like(part), part.new_empty(v.shape[1], len(part))
        for column, maxima in zip(v.mT, row_maxima, strict=True):
            torch.amax(torch.mul(part, column, out=product), 1, out=maxima)
        most.append((row_maxima * u[start : start + rows].mT).amax(1))
    return torch.stack(most).amax(0)
