"""Newton-Schulz on the Gram matrix: fewer operations than the ordinary iteration, and hardly more error."""

import pytest
import torch
from spectra import gaussian
from torch.utils.flop_counter import FlopCounterMode

import entryclip as ec
from entryclip.matrix.iterations import NEWTON_SCHULZ, POLAR_EXPRESS, iterate, may_use_gram


def wide(s, n, seed=0):
    """An fp64 matrix of n columns with the singular values `s` and random directions."""
    u, _ = torch.linalg.qr(gaussian(len(s), len(s), seed=seed, dtype=torch.float64))
    v, _ = torch.linalg.qr(gaussian(n, len(s), seed=seed + 1, dtype=torch.float64))
    return u * s @ v.T


def with_one_huge_entry(m, n):
    x = gaussian(m, n, dtype=torch.float64)
    x[3, 5] = 3000.0
    return x


M = 96
INDEX = torch.arange(1, M + 1, dtype=torch.float64)
SPECTRA = {
    "well conditioned": lambda n: gaussian(M, n, dtype=torch.float64),
    "power law": lambda n: wide(1 / INDEX, n),
    "steep power law": lambda n: wide(INDEX**-2.0, n),
    "exponential": lambda n: wide(10 ** (-6 * INDEX / M), n),
    "rank deficient": lambda n: wide((INDEX <= M // 4).double(), n),
    "one large direction": lambda n: wide((INDEX == 1).double(), n) + 1e-4 * gaussian(M, n, dtype=torch.float64),
    "one huge entry": lambda n: with_one_huge_entry(M, n),
    "heavy-tailed": lambda n: gaussian(M, n, dtype=torch.float64) / gaussian(M, n, seed=1, dtype=torch.float64),
}


def exact_and_unit(x, steps):
    """The matrix of norm 1, and what the polynomials make of it in fp64."""
    unit = x / torch.linalg.matrix_norm(x)
    u, s, vh = torch.linalg.svd(unit, full_matrices=False)
    for a, b, c in steps:
        s = a * s + b * s**3 + c * s**5
    return (u * s) @ vh, unit


def errors(x, dtype, steps=NEWTON_SCHULZ):
    """The errors of the ordinary iteration and of that on the Gram matrix, and those of their singular values."""
    expected, unit = exact_and_unit(x, steps)
    spectrum, norm = torch.linalg.svdvals(expected), torch.linalg.matrix_norm(expected)
    found = [iterate(unit.to(dtype), steps, by_gram=by_gram).double() for by_gram in (False, True)]
    relative = [float(torch.linalg.matrix_norm(y - expected) / norm) for y in found]
    deviation = [float((torch.linalg.svdvals(y) - spectrum).abs().max()) for y in found]
    return relative, deviation


@pytest.mark.parametrize("aspect", [2, 4])
@pytest.mark.parametrize("name", SPECTRA)
def test_error_in_bf16(name, aspect):
    """The ordinary iteration errs by 0.5 to 28 % of the norm; this one by less than 1 % of it more."""
    (plain, gram), (plain_spectrum, gram_spectrum) = errors(SPECTRA[name](aspect * M), torch.bfloat16)
    assert gram <= plain + 0.01
    assert gram <= 1.8 * plain
    assert gram_spectrum <= plain_spectrum + 0.02


@pytest.mark.parametrize("name", SPECTRA)
def test_error_in_fp32(name):
    """It is small there, too, but up to three times the error of the ordinary iteration, which is therefore kept."""
    (plain, gram), (_, gram_spectrum) = errors(SPECTRA[name](4 * M), torch.float32)
    assert gram <= 3 * plain
    assert gram <= 2e-5
    assert gram_spectrum <= 2e-5


def flops(shape, by_gram, device="cpu"):
    with FlopCounterMode(display=False) as counter:
        iterate(torch.zeros(shape, device=device), NEWTON_SCHULZ, by_gram=by_gram)
    return counter.get_total_flops()


@pytest.mark.parametrize("r", [2, 4, 8])
def test_operations(r):
    """(20 r + 10) m^3 against (12 r + 22) m^3: fewer from aspect ratio 1.5 on, 22 % at 4."""
    m, cube = 8, 8**3
    assert flops((1, m, r * m), by_gram=False) == (20 * r + 10) * cube
    assert flops((1, m, r * m), by_gram=True) == (12 * r + 22) * cube
    assert flops((1, r * m, m), by_gram=True) == (12 * r + 22) * cube


def test_where_it_is_used():
    """On a device, from aspect ratio 2 on, in half precision, with Jordan's steps or slower ones."""
    half = torch.zeros(8, 16, dtype=torch.bfloat16, device="meta")
    assert may_use_gram(half, NEWTON_SCHULZ)
    assert may_use_gram(half.mT, NEWTON_SCHULZ)
    assert not may_use_gram(half[:, :15], NEWTON_SCHULZ)
    assert not may_use_gram(half.float(), NEWTON_SCHULZ)
    assert not may_use_gram(half, POLAR_EXPRESS)
    assert not may_use_gram(torch.zeros(8, 16, dtype=torch.bfloat16), NEWTON_SCHULZ)
    with FlopCounterMode(display=False) as counter:
        ec.msign(half, "newton_schulz", dtype=torch.bfloat16)
    assert counter.get_total_flops() == (12 * 2 + 22) * 8**3


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
def test_any_number_of_steps_and_any_batch(count):
    x = gaussian(3, 2, 10, 25, dtype=torch.float64)
    x = x / torch.linalg.matrix_norm(x, keepdim=True)
    steps = NEWTON_SCHULZ[:1] * count
    for y in (x, x.mT):
        torch.testing.assert_close(iterate(y, steps, by_gram=True), iterate(y, steps), rtol=1e-9, atol=1e-9)
