"""Selection on a device: the same bits as on the host, from CPU tensors given to the device's functions."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import entryclip as ec
from entryclip.quantiles.device import select_by_topk, select_on_device
from entryclip.quantiles.digits import Rows, select_by_digits
from entryclip.quantiles.order import interpolate, magnitude_bits

LEVELS = (1e-6, 0.5, 0.9, 0.99, 0.995, 1.0)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SIZES = (1, 2, 3, 10, 199, 4097)
KINDS = {
    "gauss": lambda x: x,
    "sparse": lambda x: x * (x > 0.5),
    "ties": torch.round,
    "all equal": lambda x: torch.full_like(x, -2.75),
    "zeros": lambda x: 0 * x,
    "subnormal": lambda x: x * torch.finfo(x.dtype).tiny / 4,
    "inf": lambda x: torch.where(x > 1, math.inf, x),
    "mostly inf": lambda x: torch.where(x > -1, -math.inf, x),
    "one NaN": lambda x: torch.cat([torch.full_like(x[:1], math.nan), x[1:]]),
}


def data(kind, dtype, shape):
    return KINDS[kind](torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype))


def same(a, b):
    return a.dtype == b.dtype and torch.equal(a.nan_to_num(-1), b.nan_to_num(-1))


class Elsewhere(TorchDispatchMode):
    """Makes CPU tensors look like those of a device: under a dispatch mode numpy may not read them."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def by_digits(blocks, q, nonzero):
    return select_by_digits(blocks, Rows.of(blocks), q, nonzero)


@pytest.mark.parametrize("select", [select_by_topk, by_digits])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equals_the_host_to_the_bit(select, kind, dtype):
    for n in SIZES:
        x = data(kind, dtype, (3, n))
        for q in LEVELS:
            for nonzero in (False, True):
                value = interpolate(select([magnitude_bits(x)], q, nonzero), str(dtype).removeprefix("torch."))
                found = value.to(torch.float64 if dtype is torch.float64 else torch.float32)
                expected = ec.quantile_abs(x, q, dim=-1, nonzero=nonzero)
                assert same(found.expand(3), expected), (n, q, nonzero)


@pytest.mark.parametrize("select", [select_by_topk, by_digits])
@pytest.mark.parametrize("q", LEVELS)
def test_rows_of_different_lengths_together(select, q):
    """Each row has the quantile that it has alone."""
    xs = [
        data(kind, torch.float32, (rows, n))
        for kind, rows, n in zip(KINDS, (1, 3, 2, 1, 4, 1, 2, 3, 1), (5, 1, 4097, *[30] * 6), strict=True)
    ]
    found = interpolate(select([magnitude_bits(x) for x in xs], q, True), "float32").float()
    assert same(found, torch.cat([ec.quantile_abs(x, q, dim=-1, nonzero=True) for x in xs]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("nonzero", [False, True])
def test_quantile_abs_away_from_the_host(dtype, nonzero):
    """Batches, strides, scalars and several levels, through the public function."""
    full = data("sparse", dtype, (3, 40, 50))
    views = [full, full.mT, full[:, ::2, 1::3], full.permute(1, 0, 2), full[0, 0, 0], full[:0], torch.zeros_like(full)]
    for x in views:
        dim = (-2, -1) if x.ndim == 3 else None
        expected = ec.quantile_abs(x, LEVELS, dim=dim, nonzero=nonzero)
        with Elsewhere():
            found = ec.quantile_abs(x, LEVELS, dim=dim, nonzero=nonzero)
        assert same(found, expected)
    with Elsewhere(), pytest.raises(ValueError, match="no entries"):
        ec.quantile_abs(full[:, :0], 0.5, nonzero=nonzero)


@pytest.mark.filterwarnings("ignore")  # torch's own, of its profiler
@pytest.mark.parametrize("q", [0.5, 0.99])
def test_in_one_compiled_graph(q):
    x = data("sparse", torch.float32, (2, 30, 40))
    compiled = torch.compile(
        lambda x: ec.quantile_abs(x, q, dim=(-2, -1), nonzero=True), backend="eager", fullgraph=True
    )
    assert same(compiled(x), ec.quantile_abs(x, q, dim=(-2, -1), nonzero=True))


@pytest.mark.parametrize("q", [0.5, 0.99])
def test_under_vmap(q):
    x = data("sparse", torch.float32, (4, 30, 40))
    found = torch.vmap(lambda m: ec.quantile_abs(m, q, nonzero=True))(x)
    assert same(found, ec.quantile_abs(x, q, dim=(-2, -1), nonzero=True))


@pytest.mark.parametrize("q", [0.3, 0.9])
def test_long_rows(q):
    x = data("gauss", torch.float32, (1 << 20,))
    bits = magnitude_bits(x)[None]
    assert same(interpolate(select_on_device([bits], q, True), "float32").float()[0], ec.quantile_abs(x, q))
