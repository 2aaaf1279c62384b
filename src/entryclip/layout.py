"""How the matrices lie in a parameter."""

import math
from typing import Any

import torch
from torch import Tensor


def as_matrices(x: Tensor, group: dict[str, Any]) -> Tensor:
    """`x` with its matrices in the last two dimensions, output features in the rows, as the group says.

    As it is: leading dimensions are a batch. `flatten`: one matrix (out, rest), for convolutions. `transposed`: stored
    as (in, out). `blocks=3`: a fused (3 d, n) weight as three (d, n).
    """
    if group["flatten"] and x.ndim > 2:
        x = x.reshape(x.shape[0], -1)
    if group["transposed"]:
        x = x.mT
    if group["blocks"] > 1:
        x = x.reshape(group["blocks"], -1, x.shape[1])
    return x


def matrix_shape(shape: torch.Size, group: dict[str, Any]) -> tuple[int, ...]:
    """The shape that `as_matrices` gives a parameter of this shape."""
    sides = list(shape)
    if group["flatten"] and len(sides) > 2:
        sides = [sides[0], math.prod(sides[1:])]
    if group["transposed"]:
        sides[-2:] = sides[:-3:-1]
    if group["blocks"] > 1:
        sides = [group["blocks"], sides[0] // group["blocks"], sides[1]]
    return tuple(sides)


def from_matrices(m: Tensor, shape: torch.Size, group: dict[str, Any]) -> Tensor:
    """The way back, to a parameter of this shape."""
    if group["transposed"]:
        return m.reshape(*shape[:-2], shape[-1], shape[-2]).mT
    return m.reshape(shape)


def check_layout(p: Tensor, group: dict[str, Any]) -> None:
    """Refuse a number of blocks that does not divide the rows."""
    blocks = group["blocks"]
    if not isinstance(blocks, int) or isinstance(blocks, bool) or blocks < 1:
        raise ValueError(f"blocks must be a whole number >= 1, got {blocks!r}")
    if blocks > 1 and (p.ndim != 2 or p.shape[1 if group["transposed"] else 0] % blocks):
        raise ValueError(f"blocks={blocks} does not divide the rows of a parameter of shape {tuple(p.shape)}")
