"""Histograms on the fixed logarithmic grid."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entryclip.quantiles import Histogram


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(st.floats(1e-37, 1e37), st.booleans())
def test_every_number_lies_in_its_bin(dtype, value, negative):
    value = dtype(-value if negative else value)
    low, high, count = Histogram.of(np.array([value])).occupied()
    assert low[0] <= abs(value) < high[0]
    assert count.tolist() == [1]
    assert 1 + 1 / 33 < high[0] / low[0] <= 1 + 1 / 16


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_parts_add_up_to_the_whole(dtype):
    x = torch.randn(300, 200, generator=torch.Generator().manual_seed(0)).to(dtype)
    whole, parts = Histogram.of(x), Histogram.of(x[:100]) + Histogram.of(x[100:].mT)
    assert np.array_equal(whole.counts, parts.counts)
    assert whole.count == 60_000


def test_single_and_double_precision_share_the_grid():
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    assert np.array_equal(Histogram.of(x).counts, Histogram.of(x.double()).counts)
    assert np.array_equal(Histogram.of(x).counts, Histogram.of(x.numpy()[::-1]).counts)


def test_zeros_and_subnormals():
    assert Histogram.of(torch.tensor([0.0, -0.0, 1e-40, 1.0])).zeros == 3
    assert Histogram.of(torch.zeros(3, 4)).occupied()[2].tolist() == []
    assert Histogram.of(torch.zeros(0)).count == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Histogram.of(torch.tensor([1.0, math.nan, -math.inf])), "x has 2 entries that are NaN or infinite"),
        (lambda: Histogram.of(np.array([math.inf])), "x has 1 entries that are NaN or infinite"),
        (lambda: Histogram.of(torch.arange(3)), "x must be one of float64"),
        (lambda: Histogram(np.zeros(5, dtype=np.int64)), "counts must be int64 of shape"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()
