"""How the matrices lie in a parameter.

A clip has one threshold per matrix and a matrix sign acts on whole matrices, so both need to know where the matrices of
a parameter are. By default leading dimensions are a batch of matrices; a `Layout` says where that is not so.
"""

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """The position of the matrices, with output features in their rows, inside a parameter of any shape.

    flatten     the parameter (out, ...) is one matrix (out, rest), as a convolution's weight is
    transposed  the matrix is stored as (in, out), as in Hugging Face's `Conv1D`
    blocks      the rows hold this many matrices below each other, as a fused weight (3 d, n)

    >>> import torch
    >>> layout = Layout(flatten=True)
    >>> layout.matrices(torch.zeros(8, 3, 5, 5)).shape
    torch.Size([8, 75])
    """

    flatten: bool = False
    transposed: bool = False
    blocks: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.blocks, int) or isinstance(self.blocks, bool) or self.blocks < 1:
            raise ValueError(f"blocks must be a whole number >= 1, got {self.blocks!r}")

    def matrices(self, x: Tensor) -> Tensor:
        """View `x`, a tensor of the parameter's shape, with its matrices in the last two dimensions.

        It is a copy only where no view exists.
        """
        if self.flatten and x.ndim > 2:
            x = x.reshape(self._stored(x.shape))
        if self.transposed and x.ndim > 1:
            x = x.mT
        if self.blocks > 1:
            x = x.reshape(self.blocks, x.shape[0] // self.blocks, x.shape[1])
        return x

    def restore(self, m: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Undo `matrices`: turn its result back into a tensor of the parameter's shape."""
        stored = self._stored(shape)
        if not self.transposed or len(stored) < 2:
            return m.reshape(shape)
        return m.reshape(*stored[:-2], stored[-1], stored[-2]).mT.reshape(shape)

    def locate(self, place: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return where the entry `place` of the result of `matrices` is in a parameter of this shape.

        >>> Layout(transposed=True, blocks=3).locate((1, 40, 5), (64, 192))  # row 40 of the keys, stored as (in, out)
        (5, 104)
        """
        *batch, row, column = (0,) * (2 - len(place)) + tuple(place)
        if self.blocks > 1:
            row += batch.pop() * (self._stored(shape)[1 if self.transposed else 0] // self.blocks)
        if len(shape) < 2:
            return tuple(place)
        if self.transposed:
            row, column = column, row
        if not self.flatten or len(shape) == 2:
            return (*batch, row, column)
        rest = []
        for side in reversed(shape[1:]):
            column, index = divmod(column, side)
            rest.append(index)
        return (row, *reversed(rest))

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that `matrices` gives a tensor of the parameter's shape."""
        sides = self._stored(shape)
        if self.transposed:
            sides = (*sides[:-2], *reversed(sides[-2:]))
        return (self.blocks, sides[0] // self.blocks, sides[1]) if self.blocks > 1 else sides

    def check(self, p: Tensor) -> None:
        """Raise a ValueError where the blocks do not divide the rows of `p`."""
        if self.blocks > 1 and (p.ndim != 2 or p.shape[1 if self.transposed else 0] % self.blocks):
            raise ValueError(f"blocks={self.blocks} does not divide the rows of a parameter of shape {tuple(p.shape)}")

    def is_contiguous(self) -> bool:
        """Tell whether each matrix is one piece of a contiguous parameter's memory."""
        return not (self.blocks > 1 and self.transposed)

    def _stored(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape before transposing and cutting into blocks."""
        return (shape[0], math.prod(shape[1:])) if self.flatten and len(shape) > 2 else tuple(shape)


PLAIN = Layout()
