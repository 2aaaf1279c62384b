"""Parameters stepped together: the same bits as one by one, in bounded memory, and many small ones at little cost."""

import copy
import sys

import pytest
import torch
from memory import peak

import entryclip as ec
from entryclip import optim
from entryclip.optim import batches
from entryclip.optim.methods.adamw import AdamWMethod

RUNNING = ec.Clip(ec.smooth_shrinkage, ec.Running(ec.Quantile(0.9), beta=0.9))
# Equal sizes of different shapes, batches of matrices, strides, vectors and scalars, an empty and a long one.
SHAPES = [(8, 12), (12, 8), (4, 24), (3, 8, 12), (8, 12), (2, 2, 5, 5), (5, 5), (7,), (), (7,), (0, 4), (300, 500)]
OPTIONS = {
    "smooth": {},
    "no clip": {"post": None},
    "running, vectors": {"post": RUNNING, "clip_vectors": True},
    "current average": {"post": ec.Clip(ec.hard_clip, ec.Running(ec.Scale(3.0), beta=0.5, lag=0)), "amsgrad": True},
    "two stages": {"grad": ec.hard(0.9), "post": RUNNING, "maximize": True},
    "rms": {"post": ec.smooth(0.9, preserve_rms=True)},
    "soft": {"post": ec.Clip(ec.soft_threshold, ec.Quantile(0.5)), "nonfinite": "skip"},
    "of the whole matrix": {"post": ec.Clip(ec.global_clip, ec.Fixed(0.5))},
    "fixed 0": {"post": ec.Clip(ec.smooth_shrinkage, ec.Fixed(0.0))},
    "tensor lr": {"lr": torch.tensor(1e-2)},
}
KINDS = ("gauss", "zeros", "inf", "nan", "ties")


def parameters(dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape, generator=g).to(dtype)) for shape in SHAPES]
    params.append(torch.nn.Parameter(torch.randn(12, 8, generator=g).to(dtype).t()))
    return params


def set_gradients(params, step, kind="gauss"):
    g = torch.Generator().manual_seed(step)
    for i, p in enumerate(params):
        x = torch.randn(p.shape, generator=g)
        if i % 3 == 0 and kind != "gauss":
            x = {"zeros": 0 * x, "inf": x.where(x < 1, torch.inf), "nan": x.where(x < 1, torch.nan), "ties": x.sign()}[
                kind
            ]
        p.grad = None if (i + step) % 7 == 0 else x.to(p.dtype)  # so that the step counters differ


def assert_same_bits(together, alone):
    mine, theirs = ([p for group in each.param_groups for p in group["params"]] for each in (together, alone))
    for p, q in zip(mine, theirs, strict=True):
        assert torch.equal(p.nan_to_num(7.0), q.nan_to_num(7.0))
        a, b = together.state[p], alone.state[q]
        assert a.keys() == b.keys()
        for key in a:
            assert a[key].shape == b[key].shape, key
            assert a[key].dtype == b[key].dtype
            assert torch.equal(a[key].nan_to_num(7.0), b[key].nan_to_num(7.0)), key


def both(make, steps=4, kind="gauss", dtype=torch.float32):
    """One group for all parameters, and a group for each."""
    found = []
    for split in (False, True):
        params = parameters(dtype)
        optimizer = make([{"params": [p]} for p in params] if split else params)
        for step in range(steps):
            set_gradients(params, step, kind)
            optimizer.step()
        found.append(optimizer)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPTIONS)
def test_adamw_together_and_alone(name, kind):
    assert_same_bits(*both(lambda p: optim.AdamW(p, **{"lr": 1e-2, **OPTIONS[name]}), kind=kind))


@pytest.mark.parametrize("momentum", [0, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("clip", [None, ec.smooth(0.9), RUNNING], ids=str)
def test_sgd_together_and_alone(momentum, nesterov, clip):
    options = {"momentum": momentum, "nesterov": nesterov and momentum > 0, "weight_decay": 0.1, "post": clip}
    assert_same_bits(*both(lambda p: optim.SGD(p, lr=1e-2, **options)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("fp32_state", [False, True])
def test_other_dtypes_together_and_alone(dtype, fp32_state):
    assert_same_bits(*both(lambda p: optim.AdamW(p, lr=1e-2, post=RUNNING, fp32_state=fp32_state), dtype=dtype))


def test_layouts_together_and_alone():
    for options in ({"flatten": True}, {"transposed": True}, {"flatten": True, "transposed": True}):
        clips = {"post": RUNNING, "grad": ec.smooth(0.5, preserve_rms=True)}
        assert_same_bits(*both(lambda p, o=options, c=clips: optim.Staged(p, {"method": "adamw", **c, **o})))


def test_resumed_to_the_bit():
    """The rule's memory is saved for each parameter, of its own storage."""
    params = parameters()
    optimizer = optim.AdamW(params, post=RUNNING)
    for step in range(3):
        set_gradients(params, step)
        optimizer.step()
    for state in optimizer.state.values():
        assert all(value.untyped_storage().nbytes() == value.numel() * value.itemsize for value in state.values())
    twins = [torch.nn.Parameter(p.detach().clone()) for p in params]
    resumed = optim.AdamW(twins, post=RUNNING)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in range(3, 6):
        for these, one in ((params, optimizer), (twins, resumed)):
            set_gradients(these, step)
            one.step()
    assert_same_bits(optimizer, resumed)


def test_a_method_that_changes_one_function_is_asked_for_each_parameter():
    class Halved(AdamWMethod):
        def update_(self, g, w, state, group):
            super().update_(g / 2, w, state, group)

    params = [torch.nn.Parameter(torch.zeros(4, 4)) for _ in range(3)]
    optimizer = optim.Staged([{"params": params, "method": Halved()}])
    for p in params:
        p.grad = torch.ones(4, 4)
    optimizer.step()
    assert all(torch.allclose(optimizer.state[p]["exp_avg"], torch.full((4, 4), 0.05)) for p in params)


def test_batches_are_bounded_and_lose_nobody():
    shapes = [(40, 50)] * 100 + [(1000, 1000), (3,), (), (0, 2)]
    params = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    params.append(torch.nn.Parameter(torch.zeros(3, dtype=torch.float64)))
    found = list(batches.batches(params))
    assert sorted(map(id, params)) == sorted(id(p) for batch in found for p in batch)
    for batch in found:
        assert len(batch) == 1 or sum(p.numel() for p in batch) <= batches.CACHED_ENTRIES
        assert len({p.dtype for p in batch}) == 1
    assert len(found) <= 2 + 2 * 100 * 2000 // batches.CACHED_ENTRIES


def test_a_hundred_matrices_take_no_more_memory_than_a_batch():
    params = [torch.nn.Parameter(torch.ones(64, 64)) for _ in range(200)]
    optimizer = optim.AdamW(params)
    for _ in range(2):
        for p in params:
            p.grad = torch.randn(64, 64)
        optimizer.step()
    by_torch, by_numpy = peak(optimizer.step)
    assert by_torch <= 5 * 4 * batches.CACHED_ENTRIES
    assert by_numpy <= 2 * 4 * batches.CACHED_ENTRIES


@pytest.mark.parametrize(
    ("options", "limit"),
    [({}, 90), ({"post": RUNNING}, 125), ({"fused": True}, 105)],
    ids=["plain", "running", "fused"],
)
def test_many_small_matrices_take_few_calls_each(options, limit):
    """Calls of functions per parameter, where torch's foreach has 25: `entryclip bench optimizers` has the times."""
    params = [torch.nn.Parameter(torch.ones(8, 8)) for _ in range(400)]
    for i, p in enumerate(params):
        p.grad = torch.randn(8, 8, generator=torch.Generator().manual_seed(i))
    optimizer, calls = optim.AdamW(params, **options), []
    for _ in range(2):
        optimizer.step()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: calls.append(event) if event in ("call", "c_call") else None)
    try:
        optimizer.step()
    finally:
        sys.setprofile(before)
    assert len(calls) <= limit * len(params)
