"""Dividing by running row and column scales: scale out, noise in, and what must not disturb it."""

import math

import numpy as np
import pytest
import torch
from libraries import make, values

import entryclip as ec
from entryclip.diagnostics import scales
from entryclip.standardize import RunningScales, standardized


def noise(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def scaled(seed, shape=(60, 40)):
    rows = torch.logspace(-2, 2, shape[0])[:, None]
    columns = torch.logspace(1, -1, shape[1])
    return rows * columns * noise(shape, seed)


def test_rows_and_columns_have_one_scale_afterwards():
    clip, state = standardized(), None
    for step in range(8):
        x = scaled(step)
        y, state = clip.update(x, clip.init(x) if state is None else state)
    before, after = scales(x), scales(y)
    assert before.rows.std() > 10 * after.rows.std()
    assert np.log(after.rows).std() < 0.2
    assert np.log(after.columns).std() < 0.2


def test_the_mean_is_geometric_over_steps_and_free_of_its_start():
    """Matrices of one size each: after sizes 1 and 4 at beta = 1/2 the mean of weights 1/3 and 2/3 is 4^(2/3)."""
    rule, x = RunningScales(0.5), torch.ones(3, 5)
    first, state = rule(x, rule.init(x))
    second, _ = rule(4 * x, state)
    torch.testing.assert_close(second / first, torch.full((3, 5), 4 ** (2 / 3)), rtol=1e-5, atol=0)


@pytest.mark.parametrize("odd", [0.0, math.inf, math.nan])
def test_steps_without_information_change_nothing(odd):
    rule, x = RunningScales(), scaled(0)
    _, state = rule(x, rule.init(x))
    _, after = rule(torch.full_like(x, odd), state)
    assert all(torch.equal(state[key], after[key]) for key in state)
    start, _ = rule(torch.zeros(3, 4), rule.init(torch.zeros(3, 4)))
    assert torch.equal(start, torch.ones(3, 4))


def test_before_the_matrix_sign_scales_of_rows_and_columns_do_not_matter():
    """Muon's update depends on the scales of its momentum, the standardised one's does not."""
    ends = {}
    for name, pre in (("muon", None), ("standardized", standardized())):
        updates = []
        for rows in (torch.ones(60, 1), torch.logspace(-1, 1, 60)[:, None]):
            w = torch.nn.Parameter(torch.zeros(60, 40))
            optimizer = ec.optim.Muon([w], lr=1.0, weight_decay=0.0, pre=pre)
            for step in range(20):
                w.grad = rows * noise((60, 40), step)
                before = w.detach().clone()
                optimizer.step()
            updates.append(w.detach() - before)
        ends[name] = float((updates[0] - updates[1]).norm() / updates[0].norm())
    assert ends["standardized"] < 0.3 * ends["muon"]


def test_a_row_without_gradient_comes_to_rest():
    """Momentum and scale of it fade alike; without a floor their ratio, and the row's step, would stay as they are."""
    w = torch.nn.Parameter(torch.zeros(32, 64))
    optimizer = ec.optim.Muon([w], lr=1.0, weight_decay=0.0, pre=ec.standardized())
    shares = {}
    for step in range(501):
        w.grad = noise((32, 64), step)
        w.grad[5] *= step < 10
        before = w.detach().clone()
        optimizer.step()
        size = (w.detach() - before).norm(dim=1)
        shares[step] = float(size[5] / size.median())
    assert shares[9] > 0.5
    assert shares[500] < 1e-3  # 1.3 without the floor


def test_a_report_of_clips_leaves_it_out():
    w = torch.nn.Parameter(torch.zeros(40, 60))
    optimizer = ec.optim.Muon([w], lr=1.0, pre=ec.standardized(), post=ec.smooth(0.99))
    w.grad = scaled(0, (40, 60))
    optimizer.step()
    assert [row.stage for row in ec.optim.clip_report(optimizer)] == ["post"]


def test_an_empty_matrix_stays_empty():
    clip, x = standardized(), torch.zeros(0, 4)
    assert clip.update(x, clip.init(x))[0].shape == (0, 4)


def test_a_batch_is_its_matrices_one_by_one():
    clip = standardized()
    x = torch.stack([scaled(0), 100 * scaled(1)])
    y, _ = clip.update(x, clip.init(x))
    for each, wanted in zip(x, y, strict=True):
        torch.testing.assert_close(clip.update(each, clip.init(each))[0], wanted)


def test_refusals():
    with pytest.raises(ValueError, match=r"beta must be a number in \[0, 1\), got 1"):
        RunningScales(1.0)
    with pytest.raises(ValueError, match=r"row and column scales are of matrices, \(..., m, n\), got shape \(3,\)"):
        RunningScales().init(torch.ones(3))
    with pytest.raises(ValueError, match="has memory"):
        standardized()(torch.ones(3, 4))


def test_the_libraries_agree():
    found = {}
    for library in ("torch", "numpy", "jax"):
        clip, state = ec.standardized(), None
        for step in range(3):
            x = make(library, "float32", scaled(step).numpy())
            y, state = clip.update(x, clip.init(x) if state is None else state)
        found[library] = values(y)
    np.testing.assert_allclose(found["numpy"], found["torch"], rtol=1e-4)
    np.testing.assert_allclose(found["jax"], found["torch"], rtol=1e-4)


def test_half_precision_keeps_its_scales_in_fp32():
    w = torch.nn.Parameter(torch.zeros(6, 8, dtype=torch.bfloat16))
    optimizer = ec.optim.Muon([w], lr=0.1, pre=ec.standardized())
    w.grad = noise((6, 8), 0).bfloat16()
    optimizer.step()
    state = {key: value for key, value in optimizer.state[w].items() if key.startswith("pre")}
    assert {key: tuple(value.shape) for key, value in state.items()} == {
        "pre_rows": (6, 1),
        "pre_columns": (1, 8),
        "pre_weight": (1, 1),
    }
    assert all(value.dtype == torch.float32 for value in state.values())
    again = ec.optim.Muon([w], lr=0.1, pre=ec.standardized())
    again.load_state_dict(optimizer.state_dict())
    assert all(torch.equal(again.state[w][key], value) for key, value in state.items())
