"""Layout: the matrices of a parameter, and the way back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entryclip.layout import Layout


@st.composite
def layouts_and_shapes(draw):
    """Any layout with a shape that it accepts, 1 to 5 dimensions."""
    blocks = draw(st.integers(1, 3))
    flatten, transposed = draw(st.booleans()), draw(st.booleans())
    dims = 2 if blocks > 1 else draw(st.integers(1, 5))
    shape = draw(st.lists(st.integers(1, 4), min_size=dims, max_size=dims))
    if blocks > 1:
        shape[1 if transposed else 0] *= blocks
    return Layout(flatten, transposed, blocks), tuple(shape)


def tensor(shape, order):
    """Distinct numbers in the given shape, stored in any order of dimensions."""
    stored = [shape[i] for i in order]
    x = torch.arange(float(torch.Size(stored).numel())).reshape(stored)
    return x.permute([order.index(i) for i in range(len(shape))])


@given(layouts_and_shapes(), st.randoms(use_true_random=False))
def test_restore_undoes_matrices(case, random):
    layout, shape = case
    order = list(range(len(shape)))
    random.shuffle(order)
    x = tensor(shape, order)
    layout.check(x)
    m = layout.matrices(x)
    assert x.shape == shape
    assert m.shape == layout.shape(shape)
    assert torch.equal(layout.restore(m, shape), x)
    assert torch.equal(layout.restore(m.clone(memory_format=torch.contiguous_format), shape), x)


@given(layouts_and_shapes())
def test_contiguous_matrices_share_the_memory_of_a_contiguous_parameter(case):
    layout, shape = case
    x = tensor(shape, list(range(len(shape))))
    if layout.is_contiguous():
        assert layout.matrices(x).data_ptr() == x.data_ptr()


@pytest.mark.parametrize(
    ("layout", "shape", "expected"),
    [
        (Layout(), (5, 3, 4, 2), (5, 3, 4, 2)),
        (Layout(flatten=True), (8, 3, 5, 5), (8, 75)),
        (Layout(flatten=True, transposed=True), (8, 3, 5, 5), (75, 8)),
        (Layout(transposed=True), (4, 8, 24), (4, 24, 8)),
        (Layout(blocks=3), (24, 8), (3, 8, 8)),
        (Layout(transposed=True, blocks=3), (8, 24), (3, 8, 8)),
    ],
)
def test_shapes(layout, shape, expected):
    assert layout.shape(shape) == expected
    assert layout.matrices(torch.zeros(shape)).shape == expected


@pytest.mark.parametrize("blocks", [0, -1, 1.5, True])
def test_blocks_are_a_whole_number(blocks):
    with pytest.raises(ValueError, match="blocks must be a whole number >= 1"):
        Layout(blocks=blocks)


@pytest.mark.parametrize("shape", [(7, 6), (6,), (6, 3, 3)])
def test_blocks_must_divide_the_rows_of_a_matrix(shape):
    with pytest.raises(ValueError, match="blocks=3 does not divide the rows"):
        Layout(blocks=3).check(torch.zeros(shape))
