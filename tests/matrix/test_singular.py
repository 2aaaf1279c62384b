import numpy as np
import pytest
import torch
from libraries import LIBRARIES, make, values

import entryclip as ec


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(500, 500), (400, 900), (900, 400), (12, 30), (2, 450, 460)])
@pytest.mark.parametrize("k", [1, 5])
def test_triplets_of_a_flat_spectrum(shape, k):
    """A Gaussian matrix: neighbouring singular values differ by a per cent, which power iterations do not resolve."""
    x = gaussian(*shape)
    u, s, v, residual = ec.top_singular(x, k)
    exact = torch.linalg.svdvals(x.double())[..., :k]
    assert residual.max() < 1e-3
    assert ((s - exact).abs() / exact[..., :1]).max() < 1e-4
    measured = torch.linalg.vector_norm(x @ v - u * s[..., None, :], dim=-2) / s[..., :1]
    assert (measured <= residual + 1e-5).all()
    eye = torch.eye(k).expand(*x.shape[:-2], k, k)
    torch.testing.assert_close(u.mT @ u, eye, rtol=0, atol=1e-3)
    torch.testing.assert_close(v.mT @ v, eye, rtol=0, atol=1e-3)


def test_direction_of_a_spike():
    x = gaussian(600, 500) / 500**0.5
    x[7, 11] += 50
    u, s, v, residual = ec.top_singular(x)
    assert u[:, 0].abs().argmax() == 7
    assert v[:, 0].abs().argmax() == 11
    assert abs(float(u[7, 0] * v[11, 0])) > 0.99
    assert s.shape == residual.shape == (1,)


def test_residual_tells_when_it_has_not_converged():
    x = gaussian(700, 700)
    rough = ec.top_singular(x, 8, restarts=0, tol=1e-9)
    fine = ec.top_singular(x, 8, tol=3e-5)
    assert rough.residual.max() > 3e-5 > fine.residual.max()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_libraries_and_scales(library, scale):
    x = np.random.default_rng(0).standard_normal((420, 430))
    top = ec.top_singular(make(library, "float32", scale * x), 2)
    np.testing.assert_allclose(values(top.s) / scale, np.linalg.svd(x, compute_uv=False)[:2], rtol=1e-4)


def test_the_same_every_time_and_by_generator():
    x = gaussian(400, 400)
    assert torch.equal(ec.top_singular(x).u, ec.top_singular(x).u)
    assert not torch.equal(ec.top_singular(x).u, ec.top_singular(x, generator=np.random.default_rng(1)).u)


def test_zero_and_rank_one():
    assert torch.equal(ec.top_singular(torch.zeros(400, 400), 2).s, torch.zeros(2))
    top = ec.top_singular(torch.outer(torch.arange(400.0), torch.ones(400)), 3)
    torch.testing.assert_close(top.s[0], torch.linalg.vector_norm(torch.arange(400.0)) * 20)
    assert top.s[1:].max() < 1e-3 * top.s[0]


@pytest.mark.parametrize("rank", [0, 1, 5])
def test_more_than_the_rank(rank):
    x = gaussian(500, rank) @ gaussian(rank, 500, seed=1) if rank else torch.zeros(500, 500)
    u, s, v, residual = ec.top_singular(x, 8)
    assert residual.max() < 1e-3
    assert (s[rank:] <= 1e-3 * s[0]).all()
    torch.testing.assert_close(u.mT @ u, torch.eye(8), rtol=0, atol=1e-3)
    torch.testing.assert_close(v.mT @ v, torch.eye(8), rtol=0, atol=1e-3)


def test_a_steep_spectrum():
    u, _ = torch.linalg.qr(gaussian(500, 500))
    v, _ = torch.linalg.qr(gaussian(500, 500, seed=1))
    s = 10.0 ** -torch.arange(500).clamp(max=30)
    top = ec.top_singular((u * s) @ v.T, 6)
    torch.testing.assert_close(top.s, s[:6], rtol=0.05, atol=1e-6)
    torch.testing.assert_close(top.v.mT @ top.v, torch.eye(6), rtol=0, atol=1e-3)


def test_empty_batch_and_numpy_k():
    assert ec.top_singular(torch.randn(0, 500, 500), 2).u.shape == (0, 500, 2)
    assert ec.top_singular(gaussian(20, 20), np.int64(3)).s.shape == (3,)
    with pytest.raises(ValueError, match="tol must be > 0 and restarts"):
        ec.top_singular(gaussian(20, 20), restarts=-1)
    with pytest.raises(ValueError, match="tol must be > 0"):
        ec.top_singular(gaussian(20, 20), tol=float("nan"))


@pytest.mark.parametrize(
    ("x", "k", "words"),
    [
        (torch.ones(3, 4), 0, "k must be a whole number from 1 to 3"),
        (torch.ones(3, 4), 4, "k must be a whole number from 1 to 3"),
        (torch.ones(3, 4), 1.0, "k must be a whole number"),
        (torch.ones(3), 1, "two or more dimensions"),
        (torch.tensor([[1.0, float("nan")]]), 1, "NaN or infinite"),
    ],
)
def test_bad_input(x, k, words):
    with pytest.raises(ValueError, match=words):
        ec.top_singular(x, k)
