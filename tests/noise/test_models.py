"""Noise models of whole matrices: the structure each promises."""

import math

import pytest
import torch
from scipy import stats

import entryclip as ec


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", [(40, 30), (3, 20, 50)])
def test_subspace_has_equal_singular_values(shape):
    noise = ec.noise.Subspace(rank=4, scale=7.0).sample(shape, seeded(), dtype=torch.float64)
    s = torch.linalg.svdvals(noise)
    torch.testing.assert_close(s[..., :4], torch.full_like(s[..., :4], 7.0))
    assert s[..., 4:].max() < 1e-12
    assert noise.shape == shape


def test_subspace_is_uniform():
    """QR alone fixes the signs: the top left entry of U V^T would always be positive. False alarm: 1 in 10^4."""
    corner = ec.noise.Subspace(rank=1).sample((4000, 6, 5), seeded())[:, 0, 0]
    assert stats.binomtest(int((corner > 0).sum()), 4000).pvalue > 1e-4


def test_low_rank_sum_is_a_sum_of_unit_rank_ones():
    noise = ec.noise.LowRankSum(rank=3, scale=100.0).sample((2000, 20, 16), seeded())
    assert int(torch.linalg.matrix_rank(noise[0])) == 3
    # E ||sum_r u_r v_r^T||_F^2 = rank; its standard error over 2000 draws is about 0.01
    assert float(noise.square().sum(dim=(-2, -1)).mean()) / 100**2 == pytest.approx(3, abs=0.05)
    one = ec.noise.LowRankSum(rank=1, scale=5.0).sample((20, 16), seeded())
    assert float(torch.linalg.matrix_norm(one, 2)) == pytest.approx(5, rel=1e-5)


def test_spike_is_one_entry_anywhere():
    noise = ec.noise.Spike(3.0).sample((500, 4, 5), seeded())
    assert ((noise != 0).sum(dim=(-2, -1)) == 1).all()
    assert float(noise.sum()) == 1500
    assert (noise.sum(dim=0) > 0).all()  # every place is hit: missing one has probability 20 * .95^500 < 1e-9


def test_aligned_follows_the_top_direction():
    G = torch.randn(12, 9, generator=seeded(), dtype=torch.float64)
    u, _, vt = torch.linalg.svd(G)
    noise = ec.noise.Aligned(G, scale=2.0).sample((3, 12, 9), dtype=torch.float64)
    for each in noise:
        torch.testing.assert_close(each, 2 * torch.outer(u[:, 0], vt[0]))
    noise[0].zero_()  # each matrix has its own memory
    assert noise[1].abs().max() > 0


def test_heavy_low_rank_is_both():
    noise = ec.noise.HeavyLowRank(rank=2, heavy=ec.noise.StudentT(1.5), scale=0.5)
    draw = noise.sample((40, 300, 200), seeded(), dtype=torch.float64)
    assert (torch.linalg.matrix_rank(draw[:3]) == 2).all()
    assert noise.tail_index == 1.5
    top = draw[:, 0, 0].abs().max() / draw[:, 0, 0].abs().median()
    assert top > 10  # 40 Gaussian entries stay within about 5 medians


@pytest.mark.parametrize(
    "noise",
    [ec.noise.Subspace(2), ec.noise.LowRankSum(2), ec.noise.Spike(), ec.noise.HeavyLowRank(2, ec.noise.Cauchy())],
)
def test_dtype_generator_and_tail(noise):
    assert noise.sample((2, 5, 4), seeded(), dtype=torch.bfloat16).dtype == torch.bfloat16
    assert torch.equal(noise.sample((5, 4), seeded()), noise.sample((5, 4), seeded()))
    assert not torch.equal(noise.sample((50, 40), seeded(1)), noise.sample((50, 40), seeded(2)))
    assert noise.tail_index == (1.0 if isinstance(noise, ec.noise.HeavyLowRank) else math.inf)
    assert not hasattr(noise, "density")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ec.noise.Subspace(0), "rank must be an integer >= 1, got 0"),
        (lambda: ec.noise.Subspace(5).sample((4, 9)), "rank 5 does not fit in a matrix of shape"),
        (lambda: ec.noise.LowRankSum(2, -1.0), "scale must be a finite number above 0, got -1.0"),
        (lambda: ec.noise.Spike().sample((5,)), r"needs a shape \(..., m, n\)"),
        (lambda: ec.noise.Spike().sample((0, 5)), "does not fit"),
        (lambda: ec.noise.Aligned(torch.zeros(2, 2)), "G is zero"),
        (lambda: ec.noise.Aligned(torch.full((2, 2), math.nan)), "not finite"),
        (lambda: ec.noise.Aligned(torch.ones(2)), r"must be one floating-point matrix.* \(2,\)"),
        (lambda: ec.noise.Aligned(torch.ones(2, 3)).sample((3, 2)), r"must end with G's, \(2, 3\)"),
        (lambda: ec.noise.HeavyLowRank(1, ec.noise.Gaussian()), "heavy must be Cauchy"),
    ],
)
def test_bad_input(make, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make()
