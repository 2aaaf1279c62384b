"""The noise of one matrix, one sample after the other: what is kept never grows with the size of the matrix.

Every sample is measured in its own scale, the median of its non-zero |E_ij| over 0.6745 (sigma, for Gaussian noise):
samples differ in size, and a mixture of Gaussians of many sizes would pass for a heavy tail.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..matrix.singular import leading_triplet
from ..noise.histogram import Histogram
from ..quantiles.quantile import quantile_abs
from .directions import Directions

FAR = 2.5  # scales: entries beyond are the tail, 1.2 % of Gaussian noise
_KEPT = 16384  # of the largest entries, for the tail index
_PIECE = 1 << 17  # entries worked on at a time, for the cache
_HALF = 0.5  # of sigma_1: an entry that carries more has detached it


class Axes(NamedTuple):
    """Singular directions on the device of the gradients."""

    u: Tensor  # (m, count)
    v: Tensor  # (n, count)

    @classmethod
    def of(cls, found: Directions, like: Tensor) -> "Axes":
        u, v = (torch.as_tensor(side, dtype=like.dtype, device=like.device) for side in (found.u, found.v))
        return cls(u, v)


class Spike(NamedTuple):
    """An entry that carries more than half of sigma_1 of a sample's noise."""

    sample: int
    row: int
    column: int
    share: float  # u_i E_ij v_j / sigma_1, with the noise's own directions
    size: float  # |E_ij| in scales

    def __str__(self) -> str:
        return f"sample {self.sample}, row {self.row}, column {self.column}: {self.share:.0%} of sigma_1"


@dataclass
class Stream:
    """`add` the gradients of the noise half; everything else is read at the end."""

    ours: Axes
    plain: Axes
    samples: list[int] = field(default_factory=list)
    silent: int = 0  # samples without any noise here
    terms: list[np.ndarray] = field(default_factory=list)  # (2, count) per sample: r and r_max
    plain_terms: list[np.ndarray] = field(default_factory=list)
    largest: list[float] = field(default_factory=list)  # max |E_ij|
    sigma: list[float] = field(default_factory=list)  # sigma_1(E)
    scale: list[float] = field(default_factory=list)
    square: list[float] = field(default_factory=list)  # ||E||_F^2
    balance: list[float] = field(default_factory=list)  # of the far entries, with the sign of G less against it
    spikes: list[Spike] = field(default_factory=list)
    histogram: Histogram | None = None  # of E in scales
    far: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))  # the largest |E_ij|, in scales

    def add(self, sample: int, g: Tensor, centre: Tensor, mean: Tensor, positive: Tensor) -> None:
        """One gradient. `centre`: of its half; `mean`: of all samples, the paper's G; `positive`: where G is."""
        noise = g - centre
        rows = noise.abs().amax(1)
        row = int(rows.argmax())
        top = float(rows[row])
        if top == 0:
            self.silent += 1
            return
        noise /= top
        self.samples.append(sample)
        self.largest.append(top)
        square = float(torch.linalg.vector_norm(noise, dtype=torch.float64)) ** 2
        self.square.append(square * top**2)
        self.terms.append(_terms(noise, self.ours, square))
        scale = max(float(quantile_abs(noise, 0.5, nonzero=True)) / 0.6745, 1e-30)  # 1/scale must be a number of fp32
        self.scale.append(scale * top)
        self._spectrum(sample, noise, row, top, scale)
        self._marginal(noise.div_(scale), positive)
        del noise
        self._plain(g - mean)

    def _spectrum(self, sample: int, noise: Tensor, row: int, top: float, scale: float) -> None:
        """`row`: that of the largest entry."""
        u, sigma, v = leading_triplet(noise)
        column = int(noise[row].abs().argmax())
        share = float((u[row] * noise[row, column] * v[column]).abs()) / sigma
        self.sigma.append(sigma * top)
        if share > _HALF:
            self.spikes.append(Spike(sample, row, column, share, 1 / scale))

    def _marginal(self, noise: Tensor, positive: Tensor) -> None:
        """Histogram, the largest entries, and their signs; `noise` in scales."""
        histogram = Histogram.of(noise)
        self.histogram = histogram if self.histogram is None else self.histogram + histogram
        flat = noise.reshape(-1)
        (beyond,) = (flat.abs() > FAR).nonzero(as_tuple=True)
        far = flat[beyond]
        most = far.abs().topk(min(len(far), -(-noise.numel() // 100))).indices  # a heavier tail has more beyond
        if len(most) >= 10:
            with_it = (far[most] > 0) == positive.reshape(-1)[beyond[most]]
            self.balance.append(float(with_it.double().mean()) * 2 - 1)
        self.far = np.concatenate([self.far, far.abs().cpu().numpy()])
        if len(self.far) > 4 * _KEPT:
            self.far = np.partition(self.far, len(self.far) - _KEPT)[-_KEPT:]

    def _plain(self, noise: Tensor) -> None:
        """The paper's noise, along its directions."""
        top = float(noise.abs().amax())
        if top > 0:
            noise /= top
            self.plain_terms.append(
                _terms(noise, self.plain, float(torch.linalg.vector_norm(noise, dtype=torch.float64)) ** 2)
            )

    def extremes(self) -> np.ndarray:
        """(2, samples): max |E_ij| and sigma_1(E) of each."""
        return np.array([self.largest, self.sigma])

    def top(self) -> tuple[np.ndarray, int]:
        """The largest 1 % of the entries as far as they are kept, largest first, and of how many non-zero ones."""
        count = 0 if self.histogram is None else self.histogram.count - self.histogram.zeros
        kept = np.sort(self.far)[::-1].astype(np.float64)
        return kept[: min(_KEPT, count // 100 + 1)], count


def _terms(noise: Tensor, axes: Axes, square: float) -> np.ndarray:
    """r and r_max along each direction (Eq. localization_metric)."""
    along = ((noise @ axes.v) * axes.u).sum(0, dtype=torch.float64)
    most = _largest_terms(noise, axes.u.abs(), axes.v.abs()).double()
    return (torch.stack([along, most]) ** 2 / square).cpu().numpy()


def _largest_terms(noise: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """max_ij u_i |E_ij| v_j for each column of u and v."""
    if not v.shape[1]:
        return noise.new_zeros(0)
    rows = max(1, _PIECE // noise.shape[1])
    most = []
    for start in range(0, noise.shape[0], rows):
        part = noise[start : start + rows].abs()
        room, ends = torch.empty_like(part), part.new_empty(v.shape[1], len(part))
        for along, end in zip(v.mT, ends, strict=True):
            torch.amax(torch.mul(part, along, out=room), 1, out=end)
        most.append((ends * u[start : start + rows].mT).amax(1))
    return torch.stack(most).amax(0)
