"""Noise models of a matrix whose entries depend on each other, beside the independent ones of `laws.py`.

    Subspace(rank, scale)             scale * U V^T, orthonormal columns             (def:subspace)
    LowRankSum(rank, scale)           scale * sum_r u_r v_r^T, unit vectors          (fig:noise_models, b)
    Spike(scale)                      one entry, the rest zero                       (tab:localization-regimes)
    Aligned(G, scale)                 scale * u v^T with G's own top directions      (tab:localization-regimes)
    HeavyLowRank(rank, heavy, scale)  scale * sum_r a_r b_r^T, heavy-tailed entries of a_r and b_r: low rank without a
                                      second moment, which the paper names among its limitations

`sample((..., m, n), generator)` draws one matrix per index of the leading dimensions. None has a density. `tail_index`
is the one of a single entry.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .laws import Cauchy, Generator, Noise, Shape, StudentT, TensorOptions, check_number


class _Light(Noise):
    """The base of models whose entries are bounded or nearly Gaussian: their tail is lighter than any power."""

    @property
    def tail_index(self) -> float:
        return math.inf


@dataclass(frozen=True)
class Subspace(_Light):
    """Subspace noise: `scale * U V^T` with uniformly random orthonormal columns: `rank` equal singular values.

    >>> noise = Subspace(rank=2, scale=10.0).sample((6, 5), torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> [round(float(s), 6) + 0.0 for s in torch.linalg.svdvals(noise)]
    [10.0, 10.0, 0.0, 0.0, 0.0]
    """

    rank: int = 1
    scale: float = 1.0

    def __post_init__(self) -> None:
        _check_rank(self.rank)
        check_number("scale", self.scale)

    def draw(self, shape: Shape, generator: Generator, options: TensorOptions) -> Tensor:
        """Draw one matrix per leading index."""
        *batch, m, n = _matrix_shape(shape, self.rank)
        u, v = (_orthonormal(_gaussian((*batch, side, self.rank), generator, options)) for side in (m, n))
        return (self.scale * u @ v.mT).to(options["dtype"])


@dataclass(frozen=True)
class LowRankSum(_Light):
    """Low-rank noise: `scale * sum_r u_r v_r^T`, the vectors uniform on the sphere; defaults as in fig:noise_models.

    >>> noise = LowRankSum().sample((64, 48), torch.Generator().manual_seed(0))
    >>> noise.shape, int(torch.linalg.matrix_rank(noise))
    (torch.Size([64, 48]), 16)
    """

    rank: int = 16
    scale: float = 100.0

    def __post_init__(self) -> None:
        _check_rank(self.rank)
        check_number("scale", self.scale)

    def draw(self, shape: Shape, generator: Generator, options: TensorOptions) -> Tensor:
        """Draw one matrix per leading index."""
        *batch, m, n = _matrix_shape(shape)
        u, v = (_gaussian((*batch, side, self.rank), generator, options) for side in (m, n))
        u, v = (w / torch.linalg.vector_norm(w, dim=-2, keepdim=True) for w in (u, v))
        return (self.scale * u @ v.mT).to(options["dtype"])


@dataclass(frozen=True)
class Spike(_Light):
    """A single entry of size `scale` at a random place; all others are zero.

    >>> noise = Spike(5.0).sample((3, 30, 40), torch.Generator().manual_seed(0))
    >>> (noise != 0).sum(dim=(-2, -1)).tolist(), noise.amax(dim=(-2, -1)).tolist()
    ([1, 1, 1], [5.0, 5.0, 5.0])
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        check_number("scale", self.scale)

    def draw(self, shape: Shape, generator: Generator, options: TensorOptions) -> Tensor:
        """Draw one matrix per leading index."""
        *batch, m, n = _matrix_shape(shape, 1)
        at = torch.randint(m * n, (*batch, 1), generator=generator, device=options["device"])
        return torch.zeros((*batch, m * n), **options).scatter_(-1, at, self.scale).reshape(shape)


@dataclass(frozen=True, eq=False)
class Aligned(_Light):
    """Noise aligned with a signal: `scale * u v^T` with the top singular directions of `G`, the same at every draw.

    >>> noise = Aligned(torch.diag(torch.tensor([2.0, 1.0])), scale=3.0).sample((2, 2))
    >>> noise.abs().tolist()
    [[3.0, 0.0], [0.0, 0.0]]
    """

    G: Tensor  # (m, n)
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_number("scale", self.scale)
        if not (isinstance(self.G, Tensor) and self.G.ndim == 2 and self.G.is_floating_point()):
            raise TypeError(f"G must be one floating-point matrix, a torch tensor of shape (m, n), got {_kind(self.G)}")
        if not bool(torch.isfinite(self.G).all()):
            raise ValueError("G has entries that are not finite: its singular directions are not defined")
        if not bool((self.G != 0).any()):
            raise ValueError("G is zero: it has no top singular direction to align with")

    @cached_property
    def direction(self) -> Tensor:
        """The matrix u v^T, in fp64."""
        u, _, vt = torch.linalg.svd(self.G.detach().double(), full_matrices=False)
        return u[:, :1] @ vt[:1]

    def draw(self, shape: Shape, generator: Generator, options: TensorOptions) -> Tensor:
        """Return the same matrix for every leading index; nothing in it is random."""
        if shape[-2:] != tuple(self.G.shape):
            raise ValueError(f"shape must end with G's, {tuple(self.G.shape)}, got {shape}")
        return (self.scale * self.direction).to(**options).expand(shape).clone()


@dataclass(frozen=True)
class HeavyLowRank(Noise):
    """Heavy-tailed low-rank noise: `scale * sum_r a_r b_r^T` with independent heavy-tailed entries in a_r and b_r.

    A product of two independent variables with tail index nu has the same tail index, up to a logarithm.

    >>> noise = HeavyLowRank(rank=2, heavy=StudentT(2.0))
    >>> noise.tail_index, int(torch.linalg.matrix_rank(noise.sample((30, 20), torch.Generator().manual_seed(0))))
    (2.0, 2)
    """

    rank: int
    heavy: Cauchy | StudentT
    scale: float = 1.0

    def __post_init__(self) -> None:
        _check_rank(self.rank)
        check_number("scale", self.scale)
        if not isinstance(self.heavy, Cauchy | StudentT):
            raise TypeError(f"heavy must be Cauchy(gamma) or StudentT(nu, scale), got {self.heavy!r}")

    @property
    def tail_index(self) -> float:
        """The tail index of the factors' entries."""
        return self.heavy.tail_index

    def draw(self, shape: Shape, generator: Generator, options: TensorOptions) -> Tensor:
        """Draw one matrix per leading index."""
        *batch, m, n = _matrix_shape(shape)
        a, b = (self.heavy.draw((*batch, side, self.rank), generator, options) for side in (m, n))
        return self.scale * a @ b.mT


def _check_rank(rank: Any) -> None:
    if type(rank) is not int or rank < 1:
        raise ValueError(f"rank must be an integer >= 1, got {rank!r}")


def _matrix_shape(shape: Shape, rank: int = 0) -> Shape:
    if len(shape) < 2:
        raise ValueError(f"a noise model of matrices needs a shape (..., m, n), got {shape}")
    if min(shape[-2:]) < rank:
        raise ValueError(f"rank {rank} does not fit in a matrix of shape {shape[-2:]}")
    return shape


def _gaussian(shape: Shape, generator: Generator, options: TensorOptions) -> Tensor:
    """Draw standard Gaussian entries in fp32 at least."""
    wide = torch.promote_types(options["dtype"], torch.float32)
    return torch.randn(shape, generator=generator, dtype=wide, device=options["device"])


def _orthonormal(gaussian: Tensor) -> Tensor:
    """Return Haar distributed orthonormal columns: LAPACK sets their signs by the data, R's diagonal undoes it."""
    q, r = torch.linalg.qr(gaussian)
    return q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)


def _kind(x: object) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
