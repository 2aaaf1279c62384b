"""Corruption of a share of a gradient's entries, seeded: Cauchy entries, and flipped bits of the exponent.

Cauchy entries stand for heavy-tailed noise at single places, flipped bits for faulty memory or arithmetic. Both leave
every entry finite, but an entry may be so large that its square is not.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

CAUCHY_SCALE = 3.0  # of the Cauchy entries, in units of their matrix's root mean square
_EXPONENT_BITS, _MANTISSA_BITS, _NOT_FINITE = 8, 23, 255  # of fp32; an exponent of ones means inf or NaN

# (values, root mean squares of their matrices, generator) -> what replaces the values
Corruption = Callable[[Tensor, Tensor, torch.Generator], Tensor]


def cauchy_entries(values: Tensor, rms: Tensor, generator: torch.Generator) -> Tensor:
    """Return Cauchy draws of scale 3 times the matrix's root mean square, in place of `values`."""
    return torch.empty_like(values).cauchy_(generator=generator) * (CAUCHY_SCALE * rms)


def flip_exponent_bits(values: Tensor, rms: Tensor, generator: torch.Generator) -> Tensor:
    """Return fp32 `values`, each with one bit of its exponent flipped: any one that leaves it finite, equally likely.

    >>> x = torch.full((1000,), 1.5)
    >>> flipped = flip_exponent_bits(x, x, torch.Generator().manual_seed(0))
    >>> sorted(set(flipped.tolist()))[-3:], bool(flipped.isfinite().all())
    ([0.09375, 0.375, 0.75], True)
    """
    bits = values.view(torch.int32)
    exponent = (bits >> _MANTISSA_BITS) & _NOT_FINITE
    every = torch.arange(_EXPONENT_BITS, dtype=torch.int32)
    allowed = (exponent[:, None] ^ (1 << every)) != _NOT_FINITE
    chosen = torch.multinomial(allowed.float(), 1, generator=generator)[:, 0].to(torch.int32)
    return (bits ^ (1 << (chosen + _MANTISSA_BITS))).view(torch.float32)


def no_corruption(values: Tensor, rms: Tensor, generator: torch.Generator) -> Tensor:
    """Return `values`: what a dose of 0 does."""
    return values


CLEAN = "none"
CORRUPTIONS: dict[str, Corruption] = {CLEAN: no_corruption, "cauchy": cauchy_entries, "bits": flip_exponent_bits}


class GradientCorruption:
    """Corrupts a share `rate` of the entries of parameters' gradients in every backward pass, before any clip.

    How many entries are corrupted, and which, depends on the seed, the step and the parameter alone: it is the same for
    every training method. Places are drawn with replacement.

    rate        the chance of each entry, in each step
    corrupted   the number of entries so far
    """

    def __init__(self, corruption: Corruption, rate: float, seed: int) -> None:
        self._corruption, self._rate, self._seed = corruption, rate, seed
        self.corrupted = 0

    def attach(self, parameters: Iterable[nn.Parameter]) -> None:
        """Corrupt the gradients of these parameters from now on."""
        for i, p in enumerate(parameters):
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + i)  # so that the order does not matter
            p.register_post_accumulate_grad_hook(self._hook(generator))  # type: ignore[no-untyped-call]

    def _hook(self, generator: torch.Generator) -> Callable[[Tensor], None]:
        def corrupt(p: Tensor) -> None:
            assert p.grad is not None
            self.corrupted += corrupt_(p.grad, self._corruption, self._rate, generator)

        return corrupt


@torch.no_grad()
def corrupt_(grad: Tensor, corruption: Corruption, rate: float, generator: torch.Generator) -> int:
    """Corrupt a share `rate` of the entries of `grad`, (..., m, n), in place; return how many were drawn."""
    size, share = (torch.tensor(float(each), dtype=torch.float64) for each in (grad.numel(), rate))
    count = int(torch.binomial(size, share, generator=generator))
    if count:
        places = torch.unravel_index(torch.randint(grad.numel(), (count,), generator=generator), grad.shape)
        rms = grad.square().mean((-2, -1), keepdim=True).sqrt().expand(grad.shape)[places]
        grad[places] = corruption(grad[places], rms, generator)
    return count
