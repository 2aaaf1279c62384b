"""Laws of threshold rules, checked in torch, numpy and, where it is installed, jax, in every float dtype."""

import pickle

import numpy as np
import torch

from ..arrays import Array, dtype_name, to_numpy
from ..thresholds import Rule, Step
from .cases import expect, inputs, same

_STEP = Step(lr=1e-3)


def check_rule(rule: Rule) -> None:
    """Check a threshold rule against the laws in `entryclip.thresholds`.

    >>> from entryclip import Quantile
    >>> check_rule(Quantile(0.9))
    """
    expect(pickle.loads(pickle.dumps(rule)) == rule, "a rule survives pickling", rule)
    expect(bool(str(rule)), "a rule prints as what it is", rule)
    expect(type(rule).__hash__ is not None, "a rule is frozen: it can be hashed", rule)
    for x in inputs((3, 8, 12)):
        _check_thresholds(rule, x)
        _check_memory(rule, x)
    for shape in ((0, 4), (2, 0, 3), (5,), ()):
        x = torch.zeros(shape)
        threshold, _ = rule(x, rule.init(x), _STEP)
        expect(not bool(torch.isnan(threshold).any()), "zeros and empty input give no NaN", rule, shape)


def _check_thresholds(rule: Rule, x: Array) -> None:
    """Check the shape, the dtype and the sign, and that a batch gives the same as its matrices one by one."""
    threshold, _ = rule(x, rule.init(x), _STEP)
    one_each = tuple(threshold.shape) == (*x.shape[:-2], 1, 1)
    expect(one_each, "gives one threshold per matrix, (..., 1, 1)", rule, threshold)
    wanted = "float64" if dtype_name(x) == "float64" else "float32"
    expect(dtype_name(threshold) == wanted, f"gives {wanted} for {dtype_name(x)}", rule, threshold)
    expect(bool((threshold >= 0).all()), "gives no negative threshold", rule, threshold)
    for i in range(x.shape[0]):
        same(threshold[i], rule(x[i], rule.init(x[i]), _STEP)[0], "treats a batch as its matrices one by one", rule)


def _check_memory(rule: Rule, x: Array) -> None:
    """Check that the state is a value: a call returns the next one and leaves the old one as it was."""
    state = rule.init(x)
    kept = {key: to_numpy(value).copy() for key, value in state.items()}
    first, after = rule(x, state, _STEP)
    again, _ = rule(x, state, _STEP)
    same(first, again, "gives the same answer for the same state", rule)
    expect(set(after) == set(kept), "keeps the keys of its state", rule, sorted(after))
    expect(all(np.array_equal(to_numpy(state[key]), kept[key]) for key in kept), "does not write to the state", rule)
    expect(bool(rule.has_memory) == bool(kept), "has memory exactly if it has state", rule)
    _, idle = rule(0 * x, after, _STEP)
    expect(
        all(np.array_equal(to_numpy(idle[key]), to_numpy(after[key])) for key in kept), "is not moved by zeros", rule
    )
