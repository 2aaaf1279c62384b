import math

import jax
import numpy as np
import pytest
import torch
from libraries import LIBRARIES, make, values

import entryclip as ec
from entryclip.matrix import sign as spectral
from entryclip.matrix.iterations import NEWTON_SCHULZ, POLAR_EXPRESS

INF, NAN = math.inf, math.nan
METHODS = ("newton_schulz", "polar_express", "exact", "svd")
BAND = {
    "newton_schulz": (0.68, 1.135),
    "polar_express": (0.858, 1.142),
    "exact": (1 - 1e-5, 1 + 1e-5),
    "svd": (1 - 1e-6, 1 + 1e-6),
}


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def with_singular_values(s: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """A square fp64 matrix with these singular values and random directions."""
    u, _ = torch.linalg.qr(gaussian(len(s), len(s), seed=seed, dtype=torch.float64))
    v, _ = torch.linalg.qr(gaussian(len(s), len(s), seed=seed + 1, dtype=torch.float64))
    return u * s.double() @ v.T


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


@pytest.mark.parametrize("library", LIBRARIES)
def test_spectral_clip(library):
    s = torch.tensor([9.0, 4.0, 1.0, 0.5, 0.1])
    x = with_singular_values(s)
    for c in (100.0, 3.0, 0.2):
        got = values(ec.spectral_clip(make(library, "float32", x.numpy()), c))
        np.testing.assert_allclose(got, values(with_singular_values(s.clamp(max=c))), atol=2e-6)
    assert torch.equal(ec.spectral_clip(x, 9.01), x)  # nothing to clip: x to the bit


@pytest.mark.parametrize("spectrum", ["gaussian", "geometric", "rank one", "half"])
@pytest.mark.parametrize("size", [8, 96, 256])
def test_soft_spectral_clip_from_tiny_to_huge_ratios(spectrum, size):
    s = {
        "gaussian": torch.linalg.svdvals(gaussian(size, size)),
        "geometric": torch.logspace(0, -6, size),
        "rank one": torch.cat([torch.ones(1), torch.zeros(size - 1)]),
        "half": (torch.arange(size) < size // 2).float(),
    }[spectrum]
    x = with_singular_values(s).float()
    u, s, vh = torch.linalg.svd(x.double())
    for ratio in (1e-3, 0.1, 1.0, 20.0, 50.0, 200.0, 1e3, 1e4):
        c = float(s[0]) / ratio
        expected = u * (s / torch.sqrt(1 + (s / c) ** 2)) @ vh
        error = torch.linalg.matrix_norm(ec.soft_spectral_clip(x, c) - expected, 2) / min(c, float(s[0]))
        assert error < 1e-3, ratio


def test_soft_spectral_clip_without_the_host():
    """Traced, it cannot look at the ratio and takes all steps: the same result."""
    x = gaussian(3, 20, 30)
    for c in (0.01, 1.0, 1e6):
        expected = ec.soft_spectral_clip(x, c)
        jitted = jax.jit(lambda x, c=c: ec.soft_spectral_clip(x, c))(x.numpy())
        np.testing.assert_allclose(np.asarray(jitted), expected.numpy(), atol=1e-4 * min(c, 1))
    compiled = torch.compile(ec.soft_spectral_clip, fullgraph=True, backend="aot_eager")(x, torch.tensor(1.0))
    torch.testing.assert_close(compiled, ec.soft_spectral_clip(x, 1.0), rtol=0, atol=1e-4)


def test_soft_spectral_clip_without_the_host_at_the_far_end():
    x = with_singular_values((torch.arange(256) < 128).float()).float()
    u, s, vh = torch.linalg.svd(x.double())
    c = 1e-4
    expected = u * (s / torch.sqrt(1 + (s / c) ** 2)) @ vh
    traced = torch.from_numpy(np.asarray(jax.jit(lambda x: ec.soft_spectral_clip(x, c))(x.numpy())).copy())
    assert torch.linalg.matrix_norm(traced - expected, 2) < 4e-3 * c


def test_vectors_and_shapes():
    v = torch.tensor([3.0, 4.0])
    torch.testing.assert_close(ec.spectral_clip(v, 1.0), ec.global_clip(v, 1.0))
    torch.testing.assert_close(ec.soft_spectral_clip(v, 5.0), v / math.sqrt(2))
    for operator in (ec.spectral_clip, ec.soft_spectral_clip):
        assert operator(torch.tensor(-7.0), 2.0).shape == ()
        assert operator(torch.empty(0, 3), 1.0).shape == (0, 3)
        assert operator(gaussian(5, 3), 1.0).shape == (5, 3)
        assert torch.isnan(operator(torch.tensor([[1.0, NAN], [0.0, 1.0]]), 1.0)).all()
        with pytest.raises(ValueError, match="one number per matrix"):
            operator(torch.ones(2, 2), torch.ones(2, 2))


def test_half_precision_is_for_devices():
    assert spectral._short_precision("cuda", torch.float32) == torch.bfloat16
    assert spectral._short_precision("cuda", torch.float64) == torch.float64
    assert spectral._short_precision("cpu", torch.float32) == torch.float32


def test_infinite_entries_of_a_vector():
    v = torch.tensor([1.0, INF])
    assert ec.soft_spectral_clip(v, 2.0).tolist() == ec.spectral_clip(v, 2.0).tolist() == [0, 2]
    assert ec.soft_spectral_clip(v, INF).tolist() == [1, INF]


def test_bad_input():
    with pytest.raises(ValueError, match="dtype is for newton_schulz"):
        ec.msign(torch.ones(2, 2), "exact", dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="dtype must be one of"):
        ec.msign(torch.ones(2, 2), dtype=torch.int32)
    with pytest.raises(ValueError, match="must be a number >= 0"):
        ec.soft_spectral_clip(torch.ones(0, 3), -1.0)
    with pytest.raises(ValueError, match="method must be one of newton_schulz"):
        ec.msign(torch.ones(2, 2), "magic")
    with pytest.raises(ValueError, match="two or more dimensions"):
        ec.msign(torch.ones(2))
    with pytest.raises(TypeError, match="int64"):
        ec.msign(torch.ones(2, 2, dtype=torch.int64))
