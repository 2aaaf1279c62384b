"""Laws of clipping operators, checked in torch, numpy and, where it is installed, jax, in every float dtype."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..arrays import Array, dtype_name, to_numpy
from .cases import ROUNDING, expect, inputs, name_of, per_matrix, same, set_first

Operator = Callable[[Array, Any], Array]
_INF, _NAN = float("inf"), float("nan")


def check_operator(operator: Operator, *, keeps_large: bool = False) -> None:
    """Check an operator `(x, threshold) -> x` against the laws in `entryclip.operators`.

    `keeps_large=True` is for an operator that keeps what lies beyond the threshold instead of cutting it, such as
    `soft_threshold`: threshold 0 then gives x and threshold inf gives 0.

    >>> from entryclip import hard_clip
    >>> check_operator(hard_clip)
    """
    for x in inputs((3, 8, 12)):
        _check_laws(operator, x)
        _check_limits(operator, x, keeps_large)
        _check_batch(operator, x)
        _check_edges(operator, x)
    _check_refusals(operator)


def _check_laws(operator: Operator, x: Array) -> None:
    """Check that it is pure, odd and homogeneous, keeps type, dtype and shape, and does not enlarge."""
    before = to_numpy(x).copy()
    y = operator(x, 1.5)
    expect(type(y) is type(x) and y.dtype == x.dtype and y.shape == x.shape, "keeps type, dtype and shape", operator, x)
    expect(np.array_equal(to_numpy(x), before), "leaves its input alone", operator, x)
    same(operator(-x, 1.5), -y, "is odd", operator)
    same(operator(4 * x, 6.0), 4 * y, "is homogeneous: op(a x, a t) = a op(x, t)", operator)
    size, new_size = (np.linalg.norm(to_numpy(a)) for a in (x, y))
    expect(new_size <= size * (1 + ROUNDING[dtype_name(x)]), "does not enlarge", operator, x)
    same(operator(x.mT.mT[..., ::2], 1.5), operator(x[..., ::2] + 0, 1.5), "does not mind strides", operator)


def _check_limits(operator: Operator, x: Array, keeps_large: bool) -> None:
    """Check thresholds 0 and inf, and NaN in the entries and in the threshold."""
    for threshold, kept in ((0.0, keeps_large), (_INF, not keeps_large)):
        expected = x if kept else 0 * x
        same(operator(x, threshold), expected, f"at threshold {threshold} gives {'x' if kept else '0'}", operator)
    broken = set_first(x + 0, _NAN)
    expect(bool(np.isnan(to_numpy(operator(broken, 1.5)).flat[0])), "keeps NaN", operator, x)
    undefined = to_numpy(operator(x, per_matrix(x, _NAN)))
    expect(bool(np.isnan(undefined).all()), "gives NaN for a NaN threshold", operator, x)


def _check_edges(operator: Operator, x: Array) -> None:
    """Check zeros, infinite entries, vectors, scalars and empty arrays."""
    same(operator(0 * x, 0.0), 0 * x, "takes zeros at threshold 0 to zeros", operator)
    for part in (x[0, 0], x[0, 0, 0], x[:0], x[:, :0]):
        clipped = operator(part, 0.5)
        kept = (clipped.shape, clipped.dtype) == (part.shape, part.dtype)
        expect(kept, "takes vectors, scalars and empty arrays", operator, part.shape)
    spiked = to_numpy(operator(set_first(x + 0, _INF), 0.5))[0]
    limit = not np.isnan(spiked).any() or bool(np.isnan(spiked).all())
    expect(limit, "gives inf a limit, or no number at all", operator, spiked)


def _check_batch(operator: Operator, x: Array) -> None:
    """Check that a batch gives the same as its matrices one by one, each with its own threshold."""
    thresholds = [0.5, 1.0, 3.0]
    together = operator(x, per_matrix(x, thresholds))
    for i, threshold in enumerate(thresholds):
        same(together[i], operator(x[i], threshold), "treats a batch as its matrices one by one", operator)


def _check_refusals(operator: Operator) -> None:
    """Check that thresholds below 0 or NaN, and entries that are integers, raise an error."""
    for error, x, threshold in (
        (ValueError, torch.ones(2, 2), -1.0),
        (ValueError, torch.ones(2, 2), _NAN),
        (TypeError, torch.ones(2, 2, dtype=torch.int64), 1.0),
    ):
        try:
            operator(x, threshold)
        except error:
            continue
        raise AssertionError(
            f"{name_of(operator)} must refuse x of {x.dtype} at threshold {threshold} with {error.__name__}"
        )
