import math
import pickle
from dataclasses import FrozenInstanceError

import jax
import numpy as np
import pytest
import torch
from libraries import LIBRARIES, make, values

import entryclip as ec
from entryclip.testing import check_rule
from entryclip.thresholds import Step

INF, NAN = math.inf, math.nan
RULES = [
    ec.Fixed(3.0),
    ec.Fixed(INF),
    ec.Quantile(0.9),
    ec.Quantile(1.0),
    ec.Scale(8.0),
    ec.Running(ec.Quantile(0.9), beta=0.9),
    ec.Running(ec.Scale(2.0), beta=0.5, lag=0),
    ec.FollowLR(ec.Fixed(10.0), base_lr=1e-3),
    ec.FollowLR(ec.Running(ec.Quantile(0.9), beta=0.9), base_lr=1e-2),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_conformance(rule):
    check_rule(rule)
    with pytest.raises(FrozenInstanceError):
        rule.anything = 1
    assert hash(rule) == hash(pickle.loads(pickle.dumps(rule)))


@pytest.mark.parametrize("library", LIBRARIES)
def test_quantile_and_scale_rank_what_is_not_zero(library):
    """200 of 50,000 rows of an embedding have a gradient: the threshold must be theirs, not 0."""
    x = np.zeros((500, 20))
    x[:2] = np.random.default_rng(0).standard_normal((2, 20))
    t, state = ec.Quantile(0.9)(make(library, "float32", x))
    assert state == {}
    assert tuple(t.shape) == (1, 1)
    np.testing.assert_allclose(values(t), np.quantile(np.abs(x[:2].astype(np.float32)), 0.9), rtol=1e-6)
    median, _ = ec.Scale(8.0)(make(library, "float32", x))
    np.testing.assert_allclose(values(median), 8 * np.median(np.abs(x[:2].astype(np.float32))), rtol=1e-6)


def test_scale_withstands_what_moves_a_quantile():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100, 100))
    spiked = np.where(rng.random(x.shape) < 0.2, 1e9, x)
    assert ec.Scale(1.0)(spiked)[0].item() < 1.5 * ec.Scale(1.0)(x)[0].item()
    assert ec.Quantile(0.9)(spiked)[0].item() == 1e9


@pytest.mark.parametrize("rule", [ec.Quantile(0.9), ec.Scale(2.0), RULES[5], ec.FollowLR(ec.Scale(2.0), 1.0)], ids=str)
@pytest.mark.parametrize("number", [-3.0, 0.0, INF, NAN])
def test_a_numpy_scalar_gets_an_array_as_threshold(rule, number):
    """A numpy scalar would be taken for a number that the user typed: NaN was refused as a threshold below 0."""
    x = np.array(number, np.float32)
    t, _ = rule(x, rule.init(x), Step(lr=1.0))
    assert isinstance(t, np.ndarray)
    assert (t.shape, t.dtype) == ((), np.float32)
    expected, _ = rule(torch.tensor(number), rule.init(torch.tensor(number)), Step(lr=1.0))
    np.testing.assert_equal(float(t), float(expected))


def thresholds_over(rule, inputs):
    state, found = rule.init(inputs[0]), []
    for x in inputs:
        t, state = rule(x, state)
        found.append(float(t))
    return found, state


def test_running_average_with_and_without_lag():
    inputs = [v * torch.ones(2, 2) for v in (1.0, 3.0, 5.0, 7.0)]
    late, _ = thresholds_over(ec.Running(ec.Quantile(1.0), beta=0.5), inputs)
    prompt, _ = thresholds_over(ec.Running(ec.Quantile(1.0), beta=0.5, lag=0), inputs)
    assert late == [1.0, 1.0, 2.0, 3.5]
    assert prompt == [1.0, 2.0, 3.5, 5.25]


@pytest.mark.parametrize("lag", [0, 1])
def test_running_ignores_steps_that_say_nothing(lag):
    rule = ec.Running(ec.Quantile(1.0), beta=0.5, lag=lag)
    ones = torch.ones(2, 2)
    quiet, state = thresholds_over(rule, [0 * ones, 0 * ones, 4 * ones])
    assert quiet == [0.0, 0.0, 4.0]  # the first valid step uses its own value
    for nothing in (0 * ones, INF * ones, NAN * ones):
        t, after = rule(nothing, state)
        assert float(t) == 4.0
        assert all(torch.equal(after[key], state[key]) for key in state)


def test_running_keeps_fp32_for_bf16_and_one_average_per_matrix():
    rule = ec.Running(ec.Quantile(1.0), beta=0.999)
    x = torch.stack([torch.ones(2, 2), 2 * torch.ones(2, 2)]).bfloat16()
    _, state = rule(x, rule.init(x))
    _, state = rule(1.0078125 * x, state)
    assert state["average"].dtype == torch.float32
    assert state["average"].shape == (2, 1, 1)
    np.testing.assert_allclose(state["average"].ravel().numpy(), [1 + 0.0078125e-3, 2 * (1 + 0.0078125e-3)], rtol=1e-6)


def test_follow_lr_takes_numbers_and_tensors():
    rule = ec.FollowLR(ec.Fixed(10.0), base_lr=1e-3)
    x = torch.ones(2, 2)
    for lr in (5e-4, torch.tensor(5e-4)):
        assert float(rule(x, {}, Step(lr=lr))[0]) == pytest.approx(5.0)
    with pytest.raises(ValueError, match="needs the learning rate"):
        rule(x)
    with pytest.raises(ValueError, match="learning rate must be >= 0"):
        rule(x, {}, Step(lr=-1.0))
    off = ec.FollowLR(ec.Fixed(INF), base_lr=1e-3)
    assert float(off(x, {}, Step(lr=0.0))[0]) == INF  # off is off, also where a schedule ends


def test_states_are_tensors_of_their_own():
    state = RULES[5].init(torch.ones(3, 2, 2))
    state["average"].fill_(5.0)
    assert (state["valid"] == 0).all()


def test_rules_trace_under_jit_and_compile():
    x = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    for rule in (ec.Quantile(0.9), ec.Scale(2.0), ec.Running(ec.Quantile(0.9), beta=0.9)):
        expected = values(rule(torch.from_numpy(x), rule.init(torch.from_numpy(x)))[0])
        jitted = jax.jit(lambda x, rule=rule: rule(x, rule.init(x))[0])(x)
        compiled = torch.compile(lambda x, rule=rule: rule(x, rule.init(x))[0], fullgraph=True, backend="aot_eager")
        np.testing.assert_allclose(np.asarray(jitted), expected, rtol=1e-6)
        np.testing.assert_allclose(compiled(torch.from_numpy(x)).numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("make_rule", "error", "words"),
    [
        (lambda: ec.Fixed(-1.0), ValueError, "must be a number >= 0"),
        (lambda: ec.Fixed(NAN), ValueError, "must be a number >= 0"),
        (lambda: ec.Quantile(0.0), ValueError, r"q must be a number in \(0, 1\], got 0.0"),
        (lambda: ec.Quantile(1.5), ValueError, r"q must be a number in \(0, 1\], got 1.5"),
        (lambda: ec.Quantile("0.9"), ValueError, "q must be a number"),
        (lambda: ec.Scale(INF), ValueError, "positive finite"),
        (lambda: ec.Running(0.9, beta=0.9), TypeError, "expected a threshold rule"),
        (lambda: ec.Running(ec.Quantile(0.9), beta=1.0), ValueError, r"beta must be a number in \[0, 1\)"),
        (lambda: ec.Running(ec.Quantile(0.9), beta=0.9, lag=2), ValueError, "lag must be 0"),
        (lambda: ec.Running(ec.Quantile(0.9), beta=0.9, lag=True), ValueError, "lag must be 0"),
        (lambda: ec.smooth(0.9)([[1.0, 2.0]]), TypeError, "got list"),
        (lambda: ec.Fixed(1.0)(torch.ones(2, 2, dtype=torch.int64)), TypeError, "got int64"),
        (lambda: ec.Running(RULES[5], beta=0.9), ValueError, "has memory itself"),
        (lambda: ec.FollowLR(ec.Fixed(1.0), base_lr=0.0), ValueError, "base_lr must be a positive"),
        (lambda: RULES[5](torch.ones(2, 2)), ValueError, "has memory: pass the state"),
    ],
)
def test_bad_input(make_rule, error, words):
    with pytest.raises(error, match=words):
        make_rule()


@pytest.mark.parametrize(
    "wrap", [lambda rule: ec.FollowLR(rule, base_lr=1e-3), lambda rule: ec.Running(rule, beta=0.9)]
)
def test_auto_inside_another_rule_is_refused_when_it_is_made(wrap):
    """It has no threshold that could be scaled or averaged; it failed at the first step."""
    with pytest.raises(TypeError, match=r"one threshold per matrix, such as Quantile.*use it alone"):
        wrap(ec.Auto())
