"""Distributions of one entry, for noise with independent entries: `sample`, `density`, `cdf`, `quantile`, `tail_index`.

    Gaussian(sigma)       N(0, sigma^2)
    Cauchy(gamma)         gamma / (pi (x^2 + gamma^2))
    StudentT(nu, scale)   scale times Student's t with nu degrees of freedom
    Laplace(scale)        exp(-|x| / scale) / (2 scale)

All are symmetric, and all are mixtures of centred Gaussians over their variance; `contamination.py` mixes two of them.

Tails are drawn in fp64, then rounded to the dtype asked for: a uniform
number in fp32 has 2^24 values, so the largest of 10^7 Cauchy entries would always be one of the same few.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import torch
from scipy import special
from torch import Tensor

from ..arrays import Array, check_floating, constant, is_number, namespace, quiet, to_numpy

Generator = torch.Generator | None
Shape = tuple[int, ...]


class TensorOptions(TypedDict):
    """The device and dtype of a sample, as keywords of torch's factory functions."""

    device: torch.device
    dtype: torch.dtype


class Noise(ABC):
    """The base of all noise models: it can be sampled in any shape, and knows the tail index of one entry."""

    def sample(
        self, shape: Sequence[int], generator: Generator = None, *, device: Any = None, dtype: Any = None
    ) -> Tensor:
        """Draw a tensor of this shape on `device` (the generator's by default) in `dtype` (torch's default).

        Matrices are the last two dimensions, the leading ones a batch.
        """
        return self.draw(tuple(shape), generator, _options(shape, generator, device, dtype))

    @abstractmethod
    def draw(self, shape: Shape, generator: Generator, options: TensorOptions) -> Tensor:
        """Draw as `sample` does, from arguments that were checked already."""

    @property
    @abstractmethod
    def tail_index(self) -> float:
        """The exponent a with P(|entry| > t) ~ t^-a for large t; inf where it falls faster than any power."""


class Law(Noise):
    """The base of noise with independent entries of one distribution, which has a density."""

    def density(self, x: Array) -> Array:
        """Compute the probability density at `x`, a number or an array of torch, numpy or jax."""
        log = self.log_density(x)
        return namespace(log).exp(log)

    @abstractmethod
    def log_density(self, x: Array) -> Array:
        """Compute the logarithm of the density, also far out where the density itself underflows to 0."""

    @abstractmethod
    def cdf(self, x: Array) -> np.ndarray:
        """Compute P(entry <= x), in fp64 on the host. The left tail keeps its digits, so P(entry > t) is `cdf(-t)`."""

    @abstractmethod
    def quantile(self, p: Array) -> np.ndarray:
        """Compute the x with P(entry <= x) = p, for p in (0, 1), in fp64 on the host."""


@dataclass(frozen=True)
class Gaussian(Law):
    """Gaussian noise: N(0, sigma^2) in every entry.

    >>> Gaussian(2.0).sample((3, 4), torch.Generator().manual_seed(0)).shape
    torch.Size([3, 4])
    >>> round(float(Gaussian(2.0).density(0.0)), 4), Gaussian(2.0).tail_index
    (0.1995, inf)
    """

    sigma: float = 1.0

    def __post_init__(self) -> None:
        check_number("sigma", self.sigma, positive=False)

    @property
    def tail_index(self) -> float:
        """inf: the tail is lighter than any power."""
        return math.inf

    def draw(self, shape: Shape, generator: Generator, options: TensorOptions) -> Tensor:
        """Draw independent entries."""
        return self.sigma * torch.randn(shape, generator=generator, **options)

    def log_density(self, x: Array) -> Array:
        """Compute -x^2 / (2 sigma^2) - log(sigma sqrt(2 pi))."""
        if not self.sigma > 0:
            raise ValueError("Gaussian(sigma=0) is a point mass and has no density: sigma must be above 0")
        x = real(x)
        with quiet(check_floating(x)):  # far out the limit is -inf
            z = x / self.sigma
            square = z * z
        return -0.5 * square - math.log(self.sigma * math.sqrt(2 * math.pi))

    def cdf(self, x: Array) -> np.ndarray:
        """Compute Phi(x / sigma); with sigma = 0 a step at 0."""
        x = _host(x)
        return special.ndtr(x / self.sigma) if self.sigma > 0 else np.where(x >= 0, 1.0, 0.0)

    def quantile(self, p: Array) -> np.ndarray:
        """Compute sigma Phi^-1(p)."""
        return self.sigma * special.ndtri(_probability(p))


@dataclass(frozen=True)
class Cauchy(Law):
    """Cauchy noise of scale gamma: no mean, tail index 1.

    >>> Cauchy(3.0).tail_index, round(float(Cauchy(3.0).density(3.0)), 4)
    (1.0, 0.0531)
    """

    gamma: float = 1.0

    def __post_init__(self) -> None:
        check_number("gamma", self.gamma)

    @property
    def tail_index(self) -> float:
        """1, since P(|x| > t) is about 2 gamma / (pi t)."""
        return 1.0

    def draw(self, shape: Shape, generator: Generator, options: TensorOptions) -> Tensor:
        """Draw independent entries."""
        draws = torch.empty(shape, dtype=_wide(options["device"]), device=options["device"])
        return draws.cauchy_(0.0, self.gamma, generator=generator).to(options["dtype"])

    def log_density(self, x: Array) -> Array:
        """Compute -log(pi gamma (1 + x^2 / gamma^2)), without the square where it would overflow."""
        return -_log1p_square(real(x) / self.gamma) - math.log(math.pi * self.gamma)

    def cdf(self, x: Array) -> np.ndarray:
        """Compute the angle of (-x, gamma) over pi, which for x < 0 is arctan(gamma / |x|) / pi."""
        return np.arctan2(self.gamma, -_host(x)) / np.pi

    def quantile(self, p: Array) -> np.ndarray:
        """Compute -gamma cot(pi p)."""
        return -self.gamma / np.tan(np.pi * _probability(p))


@dataclass(frozen=True)
class StudentT(Law):
    """Student's t with nu degrees of freedom, times `scale`: tail index nu. `StudentT(1, g)` is `Cauchy(g)`.

    >>> StudentT(2.0).tail_index, round(float(StudentT(1.0, 3.0).density(3.0)), 4)
    (2.0, 0.0531)
    """

    nu: float
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_number("nu", self.nu)
        check_number("scale", self.scale)

    @property
    def tail_index(self) -> float:
        """The degrees of freedom, nu."""
        return float(self.nu)

    def draw(self, shape: Shape, generator: Generator, options: TensorOptions) -> Tensor:
        """Draw independent entries by Bailey's polar form: sqrt(nu (U^(-2/nu) - 1)) cos(2 pi V)."""
        u, v = torch.rand((2, *shape), generator=generator, dtype=_wide(options["device"]), device=options["device"])
        radius = (self.nu * torch.expm1(torch.log1p(-u) * (-2 / self.nu))).sqrt()
        return (self.scale * radius * torch.cos(2 * math.pi * v)).to(options["dtype"])

    def log_density(self, x: Array) -> Array:
        """-(nu + 1)/2 log(1 + x^2 / (nu scale^2)), and the constant."""
        width = self.scale * math.sqrt(self.nu)
        return -(self.nu + 1) / 2 * _log1p_square(real(x) / width) - _log_beta(self.nu) - math.log(width)

    def cdf(self, x: Array) -> np.ndarray:
        """Compute it by the incomplete beta function."""
        return np.asarray(special.stdtr(self.nu, _host(x) / self.scale))

    def quantile(self, p: Array) -> np.ndarray:
        """Compute it by the inverse of the incomplete beta function."""
        return self.scale * np.asarray(special.stdtrit(self.nu, _probability(p)))


@dataclass(frozen=True)
class Laplace(Law):
    """Laplace (double exponential) noise: density exp(-|x|/scale) / (2 scale), variance 2 scale^2.

    Its tail is heavier than a Gaussian's and lighter than any power.

    >>> law = Laplace(2.0)
    >>> round(float(law.density(0.0)), 4), round(float(law.quantile(0.975)), 4), law.tail_index
    (0.25, 5.9915, inf)
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        check_number("scale", self.scale)

    @property
    def tail_index(self) -> float:
        """inf: the tail is lighter than any power."""
        return math.inf

    def draw(self, shape: Shape, generator: Generator, options: TensorOptions) -> Tensor:
        """Draw independent entries, each as the difference of two exponential variables."""
        halves = torch.empty((2, *shape), dtype=_wide(options["device"]), device=options["device"])
        first, second = halves.exponential_(1.0, generator=generator)
        return (self.scale * (first - second)).to(options["dtype"])

    def log_density(self, x: Array) -> Array:
        """Compute -|x| / scale - log(2 scale)."""
        x = real(x)
        with quiet(check_floating(x)):  # far out the limit is -inf
            return -abs(x) / self.scale - math.log(2 * self.scale)

    def cdf(self, x: Array) -> np.ndarray:
        """Compute exp(x / scale) / 2 for x < 0, and 1 minus its mirror image above."""
        z = _host(x) / self.scale
        tail = 0.5 * np.exp(-np.abs(z))
        return np.where(z < 0, tail, 1 - tail)

    def quantile(self, p: Array) -> np.ndarray:
        """Compute scale log(2 p) for p < 1/2, and minus its mirror image above."""
        p = _probability(p)
        return self.scale * np.where(p < 0.5, np.log(2 * p), -np.log(2 * (1 - p)))


def check_number(name: str, value: Any, *, positive: bool = True) -> None:
    """Raise a ValueError unless `value` is a finite number above 0, or with `positive=False` at least 0."""
    if not (is_number(value) and math.isfinite(value) and (value > 0 if positive else value >= 0)):
        bound = "above 0" if positive else ">= 0"
        raise ValueError(f"{name} must be a finite number {bound}, got {value!r}")


def _options(shape: Sequence[int], generator: Generator, device: Any, dtype: Any) -> TensorOptions:
    """Check the arguments of a sample, and return its device and dtype."""
    if not all(isinstance(side, int) and not isinstance(side, bool) and side >= 0 for side in shape):
        raise ValueError(f"shape must be integers >= 0, got {tuple(shape)}")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator or None, got {type(generator).__name__}")
    dtype = dtype or torch.get_default_dtype()
    if not dtype.is_floating_point:
        raise TypeError(f"dtype must be a floating-point one, got {dtype}")
    device = torch.device(device) if device is not None else generator.device if generator else torch.device("cpu")
    return {"device": device, "dtype": dtype}


def real(x: Array) -> Array:
    """Convert a number or list to a numpy array; an array is returned as it is if it holds floating-point numbers."""
    if is_number(x) or isinstance(x, list | tuple):
        x = np.asarray(x, dtype=float)
    check_floating(x)
    return x


def _host(x: Array) -> np.ndarray:
    """Convert a number or an array to fp64 on the host."""
    return to_numpy(real(x)).astype(float)


def _probability(p: Array) -> np.ndarray:
    """Convert p to fp64 on the host, or raise a ValueError where an entry is not in (0, 1)."""
    values = _host(p)
    if not ((values > 0) & (values < 1)).all():
        raise ValueError(f"p must be in (0, 1), got {p!r}: at 0 and 1 the quantile is infinite")
    return values


def _wide(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # the one device without fp64


def _log1p_square(z: Array) -> Array:
    """Compute log(1 + z^2): by log1p near 0, and as 2 log(hypot(1, z)) where the square might overflow."""
    xp, one = check_floating(z), constant(1.0, z)
    near = xp.clip(z, -1.0, 1.0)
    return xp.where(abs(z) < 1, xp.log1p(near * near), 2 * xp.log(xp.hypot(one, z)))


def _log_beta(nu: float) -> float:
    """Compute log B(nu/2, 1/2), the constant of Student's density."""
    return math.lgamma(nu / 2) + math.lgamma(0.5) - math.lgamma((nu + 1) / 2)
