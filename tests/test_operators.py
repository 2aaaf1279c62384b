import itertools
import math

import jax
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from libraries import CASES, LIBRARIES, make, values

import entryclip as ec
from entryclip import operators

INF, NAN = math.inf, math.nan
ENTRYWISE = (ec.hard_clip, ec.smooth_shrinkage, ec.soft_threshold)
ROUNDING = {"float64": 1e-14, "float32": 1e-6, "bfloat16": 4e-3, "float16": 5e-4}

# Written out once more, in the plainest words, on fp64 numbers.
REFERENCE = {
    ec.hard_clip: lambda x, t: math.copysign(min(abs(x), t), x),
    ec.smooth_shrinkage: lambda x, c: x * math.exp(-abs(x) / c),
    ec.soft_threshold: lambda x, t: math.copysign(max(abs(x) - t, 0), x),
}

numbers = st.floats(-1e4, 1e4, width=16)
thresholds = st.floats(2**-9, 2**10, width=16)


@pytest.mark.parametrize(("library", "dtype"), CASES)
@pytest.mark.parametrize("operator", ENTRYWISE)
@given(x=st.lists(numbers, min_size=6, max_size=6), t=thresholds)
def test_formula(operator, library, dtype, x, t):
    got = values(operator(make(library, dtype, x), t))
    x = values(make(library, dtype, x))  # as rounded to the dtype
    t = float(values(make(library, dtype, t))) if operator is not ec.smooth_shrinkage else t
    expected = np.array([REFERENCE[operator](float(v), t) for v in x])
    smallest = 2e-34 if dtype != "float16" else 1e-7  # jax flushes subnormal factors to zero; fp16 has few digits there
    exponent = np.minimum(np.abs(x) / t, 100)  # exp(-r) inherits the rounding of r
    assert (
        np.abs(got - expected) <= ROUNDING[dtype] * np.abs(expected) + 2e-7 * exponent * np.abs(expected) + smallest
    ).all()


@pytest.mark.parametrize(("library", "dtype"), CASES)
def test_limits(library, dtype):
    x = make(library, dtype, [-INF, -2.0, -0.0, 0.0, 0.5, 3.0, INF])
    finite = [-2.0, 0.0, 0.0, 0.5, 3.0]
    for t, smooth, hard, soft in (
        (0.0, [0] * 7, [0] * 7, [-INF, *finite, INF]),
        (INF, [-INF, *finite, INF], [-INF, *finite, INF], [0] * 7),
    ):
        assert values(ec.smooth_shrinkage(x, t)).tolist() == smooth
        assert values(ec.hard_clip(x, t)).tolist() == hard
        assert values(ec.soft_threshold(x, t)).tolist() == soft
    at_infinity = make(library, dtype, [-INF, INF])
    for t in (1e-3, 1.0, 1e3):
        assert values(ec.smooth_shrinkage(at_infinity, t)).tolist() == [0, 0]
        assert values(ec.soft_threshold(at_infinity, t)).tolist() == [-INF, INF]
        limit = float(values(make(library, dtype, t)))
        assert values(ec.hard_clip(at_infinity, t)).tolist() == [-limit, limit]


@pytest.mark.parametrize("library", LIBRARIES)
def test_huge_and_tiny_thresholds_and_entries(library):
    largest = float(np.finfo(np.float32).max)
    x = make(library, "float32", [-INF, -largest, -1.0, 0.0, 1e-30, 1.0, largest, INF])
    assert values(ec.smooth_shrinkage(x, 1e-42)).tolist() == [0] * 8  # |x|/c overflows, c is subnormal
    c = 2.0**124  # jax takes 1/c, which is subnormal and so 0 from 2^126 on
    damped = largest * math.exp(-largest / c)
    expected = [0, -damped, -1, 0, 1e-30, 1, damped, 0]
    np.testing.assert_allclose(values(ec.smooth_shrinkage(x, c)), expected, rtol=1e-5)
    assert values(ec.hard_clip(x, 1e300)).tolist() == values(x).tolist()  # beyond fp32: as inf
    assert values(ec.hard_clip(x, 10**400)).tolist() == values(x).tolist()


@pytest.mark.parametrize(("library", "dtype"), CASES)
@pytest.mark.parametrize("operator", [*ENTRYWISE, ec.global_clip])
def test_nan_stays_nan(operator, library, dtype):
    for t in (0.0, 1.0, INF):
        assert np.isnan(values(operator(make(library, dtype, [NAN]), t))).all()
    x = make(library, dtype, [0.0, 1.0, INF])
    assert np.isnan(values(operator(x, make(library, dtype, NAN)))).all()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("operator", [*ENTRYWISE, ec.global_clip])
@pytest.mark.parametrize("number", [-3.0, 0.0, INF, NAN])
def test_numpy_scalars(operator, dtype, number):
    """A 0-d array stays a 0-d array and a scalar a scalar, of the same dtype, with torch's value."""
    array = np.array(number, dtype)
    for x, t in itertools.product((array, array[()]), (0.0, 1.5, INF, np.array(1.5), np.array(NAN))):
        y = operator(x, t)
        assert type(y) is type(x)
        assert (y.dtype, y.shape) == (x.dtype, ())
        expected = operator(torch.tensor(number, dtype=getattr(torch, dtype)), torch.tensor(float(t)))
        np.testing.assert_allclose(float(y), float(expected), rtol=2e-3)


@pytest.mark.parametrize(
    "clip", [ec.smooth(0.9), ec.hard(0.9, preserve_rms=True), ec.Clip(ec.global_clip, ec.Scale(2.0))]
)
def test_a_clip_of_a_numpy_scalar(clip):
    for number in (-3.0, 0.0, INF, NAN):
        y = clip(np.array(number))
        assert isinstance(y, np.ndarray)
        assert y.shape == ()
        np.testing.assert_allclose(float(y), float(clip(torch.tensor(number, dtype=torch.float64))))


@pytest.mark.parametrize("library", LIBRARIES)
def test_global_clip(library):
    x = make(library, "float32", [[[3.0, 0.0], [0.0, 4.0]], [[0.3, 0.0], [0.0, 0.4]]])
    np.testing.assert_allclose(values(ec.global_clip(x, 1.0)), [values(x)[0] / 5, values(x)[1]], rtol=1e-6)
    for scale in (1e-30, 1.0, 1e37):  # the sum of squares would vanish or overflow
        v = make(library, "float32", [3 * scale, 4 * scale])
        np.testing.assert_allclose(values(ec.global_clip(v, scale)), [0.6 * scale, 0.8 * scale], rtol=1e-6)
    spike = make(library, "float32", [INF, -INF, 7.0])
    np.testing.assert_allclose(values(ec.global_clip(spike, 2.0)), [math.sqrt(2), -math.sqrt(2), 0], rtol=1e-6)
    assert values(ec.global_clip(spike, INF)).tolist() == [INF, -INF, 7]


def test_smooth_shrinkage_derivative():
    x = torch.tensor([-INF, -3.0, -1.0, 0.0, 0.5, 1.0, 2.0, 1e30, INF], dtype=torch.float64, requires_grad=True)
    c = 0.7
    ec.smooth_shrinkage(x, c).sum().backward()
    r = x.detach().abs().clamp(max=1e30) / c
    torch.testing.assert_close(x.grad, torch.exp(-r) * (1 - r))


@pytest.mark.parametrize("operator", [ec.global_clip, ec.soft_spectral_clip])
def test_derivative_at_a_zero_matrix(operator):
    x = torch.zeros(2, 3, 3)
    x[1] = torch.eye(3)
    x.requires_grad_()
    operator(x, 1e3).sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(2, 3, 3), rtol=1e-4, atol=1e-4)


ALL = (*ENTRYWISE, ec.global_clip, ec.spectral_clip, ec.soft_spectral_clip)
matrices = st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=2, max_size=2)


@pytest.mark.parametrize("operator", ALL)
@given(x=matrices, t=thresholds, power=st.integers(-20, 20))
def test_laws(operator, x, t, power):
    """Odd, homogeneous, and never larger than what came in."""
    x = torch.tensor(x)
    y, scale = operator(x, t), 2.0**power
    slack = {"rtol": 1e-4, "atol": 1e-4 * min(t, float(x.abs().max()) or 1.0)}
    torch.testing.assert_close(operator(-x, t), -y, **slack)
    torch.testing.assert_close(operator(scale * x, scale * t) / scale, y, **slack)
    assert torch.linalg.vector_norm(y) <= torch.linalg.vector_norm(x) * (1 + 1e-4) + 1e-30


def test_default_device_does_not_matter():
    torch.set_default_device("meta")
    try:
        x = torch.ones(20, 20, device="cpu")
        for operator in ALL:
            assert operator(x, torch.full((), 0.5, device="cpu")).device.type == "cpu"
        assert ec.smooth(0.9)(x).device.type == "cpu"
        assert ec.hard_clip(torch.empty(2, 2), np.ones((2, 2))).device.type == "meta"
    finally:
        torch.set_default_device(None)


def test_gradients_by_differences():
    x = torch.tensor([-2.5, -0.4, 0.3, 1.7], dtype=torch.float64, requires_grad=True)
    t = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    for operator in (*ENTRYWISE, ec.global_clip):
        assert torch.autograd.gradcheck(operator, (x, t))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_fast_path_equals_the_plain_one(dtype, monkeypatch):
    x = torch.randn(3, 20, 30, generator=torch.Generator().manual_seed(0)).to(dtype)
    spiked = x.clone()
    spiked[0, 0, :3] = torch.tensor([INF, -INF, NAN])
    each = torch.tensor([0.5, 1.0, 2.0]).reshape(3, 1, 1)
    cases = [
        (x, 0.7),
        (x, 1e-42),
        (x, 0.0),
        (x, INF),
        (x.mT, 0.7),
        (x, each),
        (spiked, each),
        (x[:0], 1.0),
        (x[0, 0, 0], 1.0),
    ]
    fast = [ec.smooth_shrinkage(*case) for case in cases]
    monkeypatch.setattr(operators, "_smooth_shrinkage_in_place", lambda x, c: None)
    for got, case in zip(fast, cases, strict=True):
        expected = ec.smooth_shrinkage(*case)
        torch.testing.assert_close(got, expected, rtol=1e-6 if dtype.itemsize > 2 else 0, atol=0, equal_nan=True)


def test_half_precision_is_rounded_once():
    """|x|/c rounded to bf16 before the exponential would be off by percents at |x| = 5 c."""
    x = torch.linspace(0.1, 8, 500).bfloat16()
    exact = ec.smooth_shrinkage(x.double(), 1.3)
    torch.testing.assert_close(ec.smooth_shrinkage(x, 1.3), exact.bfloat16(), rtol=0, atol=0)


def test_under_jit_and_compile():
    x = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
    for operator in (*ENTRYWISE, ec.global_clip):
        jitted = jax.jit(lambda x, t, operator=operator: operator(x, t))(x, np.float32(0.8))
        compiled = torch.compile(operator, fullgraph=True, backend="aot_eager")(torch.from_numpy(x), torch.tensor(0.8))
        np.testing.assert_allclose(np.asarray(jitted), operator(x, 0.8), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(compiled.numpy(), operator(x, 0.8), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("x", "t", "error", "words"),
    [
        (torch.ones(2), -1.0, ValueError, "must be a number >= 0"),
        (torch.ones(2), NAN, ValueError, "must be a number >= 0"),
        (np.ones(2), np.float32(-1), ValueError, "must be a number >= 0"),
        (torch.ones(2), None, TypeError, "must be a number or an array, got None"),
        (torch.ones(2), True, TypeError, "must be a number or an array, got True"),
        (torch.ones(2), np.True_, TypeError, "must be a number or an array"),
        (torch.ones(2, dtype=torch.int32), 1.0, TypeError, "got int32"),
        (np.ones(2, complex), 1.0, TypeError, "got complex128"),
        ([1.0, 2.0], 1.0, TypeError, "got list"),
        (torch.ones(2, 2), torch.ones(3, 1, 1), ValueError, "does not broadcast"),
    ],
)
@pytest.mark.parametrize("operator", [*ENTRYWISE, ec.global_clip])
def test_bad_input(operator, x, t, error, words):
    with pytest.raises(error, match=words):
        operator(x, t)


def test_global_clip_wants_one_threshold_per_matrix():
    with pytest.raises(ValueError, match="one number per matrix"):
        ec.global_clip(torch.ones(2, 2), torch.ones(2, 2))
