import numpy as np
import pytest
import torch

from entryclip.diagnostics.directions import leading_directions, singular_directions


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((3, 3), [1.0, 1.0, 2.0]), ((3, 5), [1.0, 1.0, 1.0]), ((5, 3), [1.0, 1.0, 1.0])],
)
def test_gaps_are_those_of_the_symmetric_matrix(shape, expected):
    """[[0, G], [G^T, 0]] has the eigenvalues +-s and |m - n| zeros; s is 3, 2, 1, or 4, 3, 2 if G is square."""
    G = np.zeros(shape)
    lift = 1 if shape == (3, 3) else 0
    np.fill_diagonal(G, [3.0 + lift, 2.0 + lift, 1.0 + lift])
    eigenvalues = np.linalg.eigvalsh(np.block([[np.zeros((shape[0],) * 2), G], [G.T, np.zeros((shape[1],) * 2)]]))
    found = singular_directions(G, [1, 2, 3])
    for sigma, gap in zip(found.s, found.gap, strict=True):
        others = np.delete(eigenvalues, np.abs(eigenvalues - sigma).argmin())
        assert gap == pytest.approx(np.abs(others - sigma).min())
    np.testing.assert_allclose(found.gap[:2], expected[:2])


def test_flat_spectrum_of_a_large_matrix():
    """Neighbouring singular values of a Gaussian matrix differ by about a per cent: the directions are right still."""
    G = torch.randn(520, 530, generator=torch.Generator().manual_seed(0))
    found = singular_directions(G, [1, 8])
    u, s, vt = (x.numpy() for x in torch.linalg.svd(G.double(), full_matrices=False))
    np.testing.assert_allclose(found.s, s[[0, 7]], rtol=1e-10)
    np.testing.assert_allclose(np.abs(np.sum(found.u * u[:, [0, 7]], 0)), 1, atol=1e-8)
    np.testing.assert_allclose(np.abs(np.sum(found.v * vt[[0, 7]].T, 0)), 1, atol=1e-8)


def test_one_by_one_and_one_row():
    assert singular_directions(np.array([[-3.0]]), [1]).gap.tolist() == [6.0]
    assert singular_directions(np.array([[3.0, 4.0]]), [1]).gap.tolist() == [5.0]


def test_as_many_leading_directions_as_there_are():
    rng = np.random.default_rng(5)
    G = rng.standard_normal((30, 3)) @ rng.standard_normal((3, 20))
    found = leading_directions(G, 8)
    assert found.s.size == 3
    np.testing.assert_allclose(found.s, np.linalg.svd(G)[1][:3])
    assert leading_directions(np.eye(4), 2).s.size == 0  # none is determined
    assert leading_directions(rng.standard_normal((4, 9)), 8).s.size == 4
    with pytest.raises(ValueError, match="G is zero"):
        leading_directions(np.zeros((3, 3)), 2)
