"""The conformance suite lets the package's own operators through and catches each way of breaking a law."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import entryclip as ec
from entryclip.arrays import cast, namespace
from entryclip.operators import OPERATORS
from entryclip.testing import check_operator, check_rule


@pytest.mark.parametrize("operator", [*OPERATORS, ec.spectral_clip, ec.soft_spectral_clip])
def test_our_operators_conform(operator):
    check_operator(operator, keeps_large=operator is ec.soft_threshold)


def writes_its_input(x, t):
    y = ec.hard_clip(x, t)
    if isinstance(x, torch.Tensor):
        x *= 0
    return y


def widens(x, t):
    return ec.hard_clip(x, t).astype("float64") if not isinstance(x, torch.Tensor) else ec.hard_clip(x, t).double()


def drops_nan(x, t):
    return namespace(x).nan_to_num(ec.hard_clip(x, t))


def one_threshold_for_all(x, t):
    return ec.hard_clip(x, t if isinstance(t, float) else t.min() + 0 * t)


def takes_anything(x, t):
    return ec.hard_clip(x, abs(t) if isinstance(t, float) and t < 0 else t)


def bare_formula(x, t):
    """The paper's formula with validation and nothing else: NaN at inf and at 0/0."""
    ec.hard_clip(x, t)
    xp = namespace(x)
    t = t if isinstance(t, float) else t + 0 * x
    with np.errstate(all="ignore"):
        return cast(x * xp.exp(-xp.abs(x) / (xp.asarray(t, dtype=x.dtype))), x.dtype)


BROKEN = [
    (bare_formula, "at threshold 0|gives inf a limit|takes zeros"),
    (writes_its_input, "leaves its input alone"),
    (widens, "keeps type, dtype and shape"),
    (lambda x, t: ec.hard_clip(x, t) + 0.1 * abs(x), "is odd"),
    (lambda x, t: ec.hard_clip(x, namespace(x).sqrt(x * 0 + t)), "is homogeneous"),
    (lambda x, t: 2 * x, "does not enlarge|at threshold 0"),
    (lambda x, t: x, "at threshold 0.0 gives 0"),
    (lambda x, t: 0 * x, "at threshold inf gives x"),
    (drops_nan, "keeps NaN"),
    (one_threshold_for_all, "treats a batch as its matrices one by one"),
    (takes_anything, "must refuse"),
]


@pytest.mark.parametrize(("operator", "law"), BROKEN)
def test_broken_operators_are_caught(operator, law):
    with pytest.raises(AssertionError, match=law):
        check_operator(operator)


class Base(ec.Quantile):
    def __call__(self, x, state=None, step=None):
        return super().__call__(x, state, step)


class OneForAll(Base):
    def __call__(self, x, state=None, step=None):
        t, state = super().__call__(x, state, step)
        return t * 0 + t.max(), state


class Flat(Base):
    def __call__(self, x, state=None, step=None):
        t, state = super().__call__(x, state, step)
        return t.ravel(), state


class Forgetful(Base):
    def init(self, x):
        return {"seen": ec.Quantile(0.5)(x)[0]}


@dataclass
class Unfrozen:
    q: float

    has_memory = False

    def init(self, x):
        return {}

    def __call__(self, x, state=None, step=None):
        return ec.Quantile(self.q)(x)


class Narrow(Base):
    def __call__(self, x, state=None, step=None):
        t, state = super().__call__(x, state, step)
        return (t.to(x.dtype) if isinstance(x, torch.Tensor) else t.astype(x.dtype)), state


class Negative(Base):
    def __call__(self, x, state=None, step=None):
        t, state = super().__call__(x, state, step)
        return -t, state


@pytest.mark.parametrize(
    ("rule", "law"),
    [
        (OneForAll(0.9), "one by one"),
        (Unfrozen(0.9), "is frozen"),
        (Flat(0.9), "one threshold per matrix"),
        (Forgetful(0.9), "keeps the keys of its state"),
        (Narrow(0.9), "gives float32 for bfloat16"),
        (Negative(0.9), "no negative threshold"),
    ],
)
def test_broken_rules_are_caught(rule, law):
    with pytest.raises(AssertionError, match=law):
        check_rule(rule)
