import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from libraries import LIBRARIES, make, values
from spectra import gaussian, with_singular_values

import entryclip as ec
from entryclip.matrix import sign
from entryclip.matrix.iterations import NEWTON_SCHULZ, POLAR_EXPRESS

INF, NAN = math.inf, math.nan
METHODS = ("newton_schulz", "polar_express", "exact", "svd")
BAND = {
    "newton_schulz": (0.68, 1.135),
    "polar_express": (0.858, 1.142),
    "exact": (1 - 1e-5, 1 + 1e-5),
    "svd": (1 - 1e-6, 1 + 1e-6),
}


def polar(x: torch.Tensor) -> torch.Tensor:
    u, _, vh = torch.linalg.svd(x.double(), full_matrices=False)
    return u @ vh


SHAPES = [(64, 64), (32, 128), (128, 32), (1, 20), (20, 1), (4, 3, 24, 40)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("method", "steps", "safety"), [("newton_schulz", NEWTON_SCHULZ, 1.0), ("polar_express", POLAR_EXPRESS, 1.02)]
)
def test_short_iterations_do_what_their_polynomials_say(method, steps, safety, shape):
    x = gaussian(*shape)
    s = torch.linalg.svdvals(x.double()) / torch.linalg.matrix_norm(x.double())[..., None] / safety
    large = s > 1e-2
    for a, b, c in steps:
        s = a * s + b * s**3 + c * s**5
    assert BAND[method][0] <= s[large].min()
    assert s[large].max() <= BAND[method][1]
    sign = ec.msign(x, method)
    torch.testing.assert_close(torch.linalg.svdvals(sign.double()), s.sort(descending=True).values, rtol=0, atol=1e-4)
    assert sign.shape == x.shape
    assert sign.dtype == x.dtype


@pytest.mark.parametrize("method", ["exact", "svd"])
@pytest.mark.parametrize("shape", SHAPES)
def test_all_singular_values_become_one(method, shape):
    sign = ec.msign(gaussian(*shape), method)
    s = torch.linalg.svdvals(sign.double())
    torch.testing.assert_close(s, torch.ones_like(s), rtol=0, atol=1e-5)
    assert sign.shape == shape


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1.0, 1e30])
def test_scale_free(method, scale):
    x = gaussian(24, 40)
    torch.testing.assert_close(ec.msign(scale * x, method), ec.msign(x, method), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("method", ["exact", "svd"])
def test_exact_is_the_polar_factor(method):
    x = gaussian(300, 32, 32)
    error = torch.linalg.matrix_norm(ec.msign(x, method).double() - polar(x))
    assert error.median() < 1e-5
    assert error.max() < 1e-4


def test_exact_in_fp64_and_for_ill_conditioned_input():
    s = torch.logspace(0, -10, 40, dtype=torch.float64)
    x = with_singular_values(s)
    torch.testing.assert_close(ec.msign(x, "exact"), polar(x), rtol=0, atol=1e-4)  # eps * 1e10, times a bit
    fp32 = with_singular_values(torch.logspace(0, -4, 40)).float()
    torch.testing.assert_close(ec.msign(fp32, "exact").double(), polar(fp32), rtol=0, atol=3e-3)


@pytest.mark.parametrize("method", METHODS)
def test_rank_deficient_zero_and_non_finite(method):
    assert torch.equal(ec.msign(torch.zeros(3, 4), method), torch.zeros(3, 4))
    a, b = gaussian(30, 3), gaussian(3, 20, seed=1)
    sign = ec.msign(a @ b, method).double()
    u, _, vh = torch.linalg.svd((a @ b).double(), full_matrices=False)
    inside = u[:, :3].T @ sign @ vh[:3].T  # on the three directions there are
    low, high = BAND[method]
    assert low - 1e-4 <= torch.linalg.svdvals(inside).min()
    assert torch.linalg.svdvals(sign).max() <= high + 1e-4
    batch = torch.stack([torch.eye(3), torch.full((3, 3), NAN), torch.diag(torch.tensor([1.0, INF, 1.0]))])
    result = ec.msign(batch, method)
    assert torch.isfinite(result[0]).all()
    assert torch.isnan(result[1:]).all()


def test_svd_leaves_null_directions_at_zero():
    sign = ec.msign(gaussian(30, 3) @ gaussian(3, 20, seed=1), "svd")
    torch.testing.assert_close(torch.linalg.svdvals(sign)[3:], torch.zeros(17), rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_agree(library, method):
    x = gaussian(2, 12, 20)
    got = ec.msign(make(library, "float32", x.double().numpy()), method)
    np.testing.assert_allclose(values(got), values(ec.msign(x, method)), atol=2e-4)


def test_precision_of_the_short_iterations():
    x = gaussian(64, 64)
    fp32, bf16 = ec.msign(x), ec.msign(x, dtype=torch.bfloat16)
    assert bf16.dtype == torch.float32
    assert 1e-4 < (fp32 - bf16).abs().max() < 0.1
    half = x.bfloat16()
    assert torch.equal(ec.msign(half), ec.msign(half.float()).bfloat16())  # on a CPU half precision is iterated in fp32


def test_half_precision_is_for_devices():
    on_gpu = [SimpleNamespace(device=torch.device("cuda"), dtype=dtype) for dtype in (torch.float32, torch.float64)]
    assert [sign.iteration_dtype(x, "newton_schulz") for x in on_gpu] == [torch.bfloat16, torch.float64]
    assert [sign.iteration_dtype(x, "exact") for x in on_gpu] == [torch.float32, torch.float64]
    assert sign.iteration_dtype(torch.zeros(2, 2), "newton_schulz") == torch.float32


def test_bad_input():
    with pytest.raises(ValueError, match="dtype is for newton_schulz"):
        ec.msign(torch.ones(2, 2), "exact", dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="dtype must be one of"):
        ec.msign(torch.ones(2, 2), dtype=torch.int32)
    with pytest.raises(ValueError, match="method must be one of newton_schulz"):
        ec.msign(torch.ones(2, 2), "magic")
    with pytest.raises(ValueError, match="two or more dimensions"):
        ec.msign(torch.ones(2))
    with pytest.raises(TypeError, match="int64"):
        ec.msign(torch.ones(2, 2, dtype=torch.int64))
