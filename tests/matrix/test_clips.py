import math

import jax
import numpy as np
import pytest
import torch
from libraries import LIBRARIES, make, values
from spectra import gaussian, with_singular_values

import entryclip as ec

INF, NAN = math.inf, math.nan


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


def test_infinite_entries_of_a_vector():
    v = torch.tensor([1.0, INF])
    assert ec.soft_spectral_clip(v, 2.0).tolist() == ec.spectral_clip(v, 2.0).tolist() == [0, 2]
    assert ec.soft_spectral_clip(v, INF).tolist() == [1, INF]


def test_bad_threshold():
    with pytest.raises(ValueError, match="must be a number >= 0"):
        ec.soft_spectral_clip(torch.ones(0, 3), -1.0)
