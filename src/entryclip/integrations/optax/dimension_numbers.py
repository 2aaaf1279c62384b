"""Where the matrices lie in the arrays of a parameter tree.

The matrices of an array are (..., in, out): flax and optax multiply from the left, so that a weight has its inputs in
the rows, and torch's Linear is the transpose of it.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
from optax.contrib import MuonDimensionNumbers

Array = Any  # jax.Array
Tree = Any  # a pytree of arrays, as a model's parameters are
DimensionNumbers = Tree | Callable[[Tree], Tree]  # a MuonDimensionNumbers or None for each array, or a function to them


class Matrices:
    """The way from an array to its matrices, (..., in, out), and back."""

    def __init__(self, x: Array, numbers: MuonDimensionNumbers | None):
        self.shape, self.order = tuple(x.shape), tuple(range(x.ndim))
        self.moved, self.matrices = self.shape, self.shape
        if numbers is None:
            return
        ins, outs = _axes(numbers.reduction_axis, x.ndim), _axes(numbers.output_axis, x.ndim)
        if x.ndim < 2 or not ins or not outs or len({*ins, *outs}) < len(ins) + len(outs):
            raise ValueError(
                f"an array of shape {self.shape} needs reduction and output axes that are all different, got {numbers}"
            )
        batch = tuple(axis for axis in self.order if axis not in (*ins, *outs))
        self.order = (*batch, *ins, *outs)
        self.moved = tuple(self.shape[axis] for axis in self.order)
        sides = math.prod(self.shape[axis] for axis in ins), math.prod(self.shape[axis] for axis in outs)
        self.matrices = (*self.moved[: len(batch)], *sides)

    def of(self, x: Array) -> Array:
        """Return the matrices of `x`, an array of this shape."""
        return x.transpose(self.order).reshape(self.matrices)

    def restore(self, matrices: Array) -> Array:
        """Undo `of`."""
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return matrices.reshape(self.moved).transpose(back)


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes as numbers from 0 on, of one axis or of a sequence of them."""
    return tuple(each % ndim for each in ((axis,) if isinstance(axis, int) else axis))


def plain_matrices(params: Tree) -> Tree:
    """Return the dimension numbers that take arrays of two dimensions as they are, and no other array."""
    return jax.tree.map(lambda p: MuonDimensionNumbers() if p.ndim == 2 else None, params)


def map_matrices(function: Callable[..., Any], tree: Tree, given: DimensionNumbers | None, *others: Tree) -> Tree:
    """Map over the arrays of `tree` with the dimension numbers of each, and what other trees hold in their places.

    Dimension numbers are found by their path, since the tree may have holes where `optax.partition` masked an array.
    """
    numbers = given(tree) if callable(given) else given
    by_path = dict(jax.tree_util.tree_flatten_with_path(numbers, is_leaf=_is_leaf)[0])
    structure: Any  # jax's class of it has no types
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    parts = zip(*map(structure.flatten_up_to, others), strict=True) if others else [()] * len(leaves)
    found = [function(x, by_path.get(path), *part) for (path, x), part in zip(leaves, parts, strict=True)]
    return structure.unflatten(found)


def _is_leaf(value: Any) -> bool:
    return isinstance(value, MuonDimensionNumbers)
