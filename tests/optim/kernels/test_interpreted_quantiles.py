"""`quantile_abs` by the Triton kernels, in Triton's interpreter: the same bits as the plain selection on the host."""

import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1: test_gpu.py runs this file with it", allow_module_level=True)
pytest.importorskip("triton")

from test_interpreted import KINDS, _fast_calls, values_of  # noqa: F401 - a fixture

import entryclip as ec
from entryclip.quantiles import device, gpu, quantile
from entryclip.quantiles.order import raw_bits

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SUBNORMAL = {torch.float32: 1.0, torch.bfloat16: 1e3, torch.float16: 1e36}  # times `values_of`, which are for fp32


def zoo(n, dtype, seed=0):
    """One row of n entries for each kind of numbers that a selection may get wrong."""
    generator = torch.Generator().manual_seed(seed)
    rows = [values_of(kind, n, generator) * (SUBNORMAL[dtype] if kind == "subnormal" else 1.0) for kind in KINDS]
    return torch.stack(rows).to(dtype)


def assert_same(found, expected):
    assert found.dtype is expected.dtype
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("q", "nonzero"), [(0.0, False), (0.5, True), (0.995, False), (0.995, True), (1.0, True)])
def test_equals_the_host_to_the_bit(dtype, q, nonzero):
    """Many rows at once, each of one tile or of several."""
    for n in (1, 2, 3, 600) if q == 0.5 else (601,):
        x = zoo(n, dtype)
        found = gpu.quantile_of_rows(x, q, nonzero, tile=1024 if n < 601 else 512)
        assert_same(found, ec.quantile_abs(x, q, dim=-1, nonzero=nonzero))


def test_the_zoo_has_subnormal_numbers():
    for dtype in DTYPES:
        size = zoo(600, dtype)[KINDS.index("subnormal")].abs()
        assert ((size > 0) & (size < torch.finfo(dtype).tiny)).float().mean() > 0.2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shift", [0, 1], ids=["aligned", "unaligned"])
def test_rows_that_lie_apart(dtype, shift):
    """Rows with a stride, which are read in place, and columns, which are copied first."""
    room = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    start = (-room.data_ptr() % 16) // room.element_size() + shift
    rows = room[:, start : start + 640]
    for x in (rows, rows[:1].expand(3, -1), rows.mT.contiguous().mT):
        assert_same(gpu.quantile_of_rows(x, 0.9, False, tile=512), ec.quantile_abs(x, 0.9, dim=-1))
    assert gpu.is_aligned(raw_bits(rows)) == (shift == 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_quantile_abs_itself(dtype, monkeypatch):
    """Batches, strides, scalars, empty batches and several levels, through the public function."""
    full = torch.randn(2, 12, 20, generator=torch.Generator().manual_seed(0)).to(dtype)
    full[:, 3] = 0
    views = [full, full.mT, full[:, ::2, 1::3], full[0, 0, 0], full[:0], torch._neg_view(full)]
    levels = (0.3, 0.99)
    expected = [ec.quantile_abs(x, levels, dim=(-2, -1) if x.ndim == 3 else None, nonzero=True) for x in views]
    calls = []
    monkeypatch.setattr(quantile, "on_host", lambda x: False)
    monkeypatch.setattr(device, "_kernels_for", lambda x: calls.append(x) or gpu)
    for x, value in zip(views, expected, strict=True):
        assert_same(ec.quantile_abs(x, levels, dim=(-2, -1) if x.ndim == 3 else None, nonzero=True), value)
    assert len(calls) == 2 * 5


@pytest.mark.parametrize(("dtype", "passes"), [(torch.float32, 4), (torch.bfloat16, 2), (torch.float16, 2)], ids=str)
def test_number_of_launches(dtype, passes, monkeypatch):
    """One set of launches for all rows."""
    launched, original = [], gpu.launch

    def counting(kernel, programs, *arguments, **constants):
        launched.append((kernel.fn.__name__, programs))
        original(kernel, programs, *arguments, **constants)

    monkeypatch.setattr(gpu, "launch", counting)
    gpu.quantile_of_rows(torch.ones(5, 40, dtype=dtype), 0.5, True)
    assert launched == passes * [("count_digit", 5), ("choose_bin", 5)]
