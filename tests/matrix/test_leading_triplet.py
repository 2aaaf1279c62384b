import pytest
import torch

from entryclip.matrix.singular import leading_triplet, top_singular

G = torch.Generator().manual_seed(0)


def gaussian(m, n):
    return torch.randn(m, n, generator=G)


@pytest.mark.parametrize("shape", [(3, 5), (48, 20), (49, 60), (60, 49), (200, 200), (500, 130), (130, 900)])
@pytest.mark.parametrize("kind", ["flat", "spike", "low rank", "zero but one"])
def test_the_triplet_against_a_full_svd(shape, kind):
    """Flat: Gaussian noise, the slowest; the value to 1e-3, never above. With a direction that stands out, exact."""
    x = gaussian(*shape)
    if kind == "spike":
        x[2, 3] = 300.0
    if kind == "low rank":
        x = gaussian(shape[0], 2) @ gaussian(2, shape[1])
    if kind == "zero but one":
        x = torch.zeros(shape)
        x[1, 2] = -3.0
    u, sigma, v = leading_triplet(x)
    truth = float(torch.linalg.svdvals(x)[0])
    assert sigma == pytest.approx(truth, rel=1e-3 if kind == "flat" else 1e-5)
    assert sigma <= truth * (1 + 1e-5)
    assert (u.shape, v.shape) == ((shape[0],), (shape[1],))
    assert float(u @ x @ v) == pytest.approx(sigma, rel=1e-4)
    if kind in ("spike", "zero but one"):
        assert float((u * u).max() * (v * v).max()) > 0.9


def test_it_agrees_with_top_singular():
    """Both are the same iteration, with blocks of another size: equal where the direction stands out."""
    x = gaussian(400, 500)
    x[7, 11] = 300.0
    fast, exact = leading_triplet(x), top_singular(x)
    assert fast.sigma == pytest.approx(float(exact.s), rel=1e-5)
    assert abs(float(fast.u @ exact.u[:, 0])) == pytest.approx(1, abs=1e-5)
    assert abs(float(fast.v @ exact.v[:, 0])) == pytest.approx(1, abs=1e-5)
