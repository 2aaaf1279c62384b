"""With no clip the optimizers are torch's."""

import copy
from itertools import product

import pytest
import torch

from entryclip import optim

SHAPES = [(6, 5), (3, 4, 4), (7,), (), (0, 3), (2, 3, 2, 2)]


def parameters(dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    params = [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in SHAPES]
    params.append(torch.randn(5, 6, generator=g, dtype=torch.float64).to(dtype).T)  # not contiguous
    return [torch.nn.Parameter(p) for p in params]


def run(ours, theirs, mine, yours, steps, scale=1.0):
    """The same gradients to both; every third step the second parameter has none."""
    g = torch.Generator().manual_seed(1)
    for step in range(steps):
        for i, (a, b) in enumerate(zip(mine, yours, strict=True)):
            grad = scale * torch.randn(a.shape, generator=g, dtype=torch.float64).to(a.dtype)
            a.grad = b.grad = None if i == 1 and step % 3 == 0 else grad
        before = [None if p.grad is None else p.grad.clone() for p in mine]
        ours.step()
        theirs.step()
        for p, grad in zip(mine, before, strict=True):
            assert (p.grad is None) if grad is None else torch.equal(p.grad, grad)  # read, never written


def check_both(ours, theirs, options, dtype=torch.float32, steps=100, **extra):
    mine, yours = parameters(dtype), parameters(dtype)
    run(ours(mine, **options, **extra), theirs(yours, foreach=False, **options), mine, yours, steps)
    for a, b in zip(mine, yours, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.5)])
def test_adamw_to_the_bit(amsgrad, maximize, weight_decay, betas):
    options = {"lr": 0.01, "betas": betas, "eps": 1e-6, "weight_decay": weight_decay}
    options |= {"amsgrad": amsgrad, "maximize": maximize}
    check_both(optim.AdamW, torch.optim.AdamW, options, post=None)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_adamw_in_other_dtypes(dtype):
    check_both(optim.AdamW, torch.optim.AdamW, {"lr": 0.01}, dtype=dtype, post=None)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_tensor_learning_rate(shape):
    lr = torch.full(shape, 0.01)
    check_both(optim.AdamW, torch.optim.AdamW, {"lr": lr}, post=None)
    check_both(optim.SGD, torch.optim.SGD, {"lr": lr, "momentum": 0.9})
    assert optim.SGD(parameters(), lr=lr).param_groups[0]["lr"] is lr  # a scheduler changes it in place


def test_tensor_betas():
    """torch computes with them in fp32, ours in the host's numbers: equal up to that rounding."""
    mine, yours = parameters(), parameters()
    betas = torch.tensor(0.8), torch.tensor([0.98])
    run(optim.AdamW(mine, betas=betas, post=None), torch.optim.AdamW(yours, betas=betas), mine, yours, 20)
    for a, b in zip(mine, yours, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


SGD_OPTIONS = [
    {"momentum": m, "dampening": d, "nesterov": n, "weight_decay": w, "maximize": x}
    for m, d, n, w, x in product([0, 0.9], [0, 0.3], [False, True], [0, 0.1], [False, True])
    if not n or (m and not d)
]


@pytest.mark.parametrize("options", SGD_OPTIONS, ids=str)
def test_sgd_to_the_bit(options):
    check_both(optim.SGD, torch.optim.SGD, {"lr": 0.01, **options})


@pytest.mark.parametrize("adjust_lr_fn", [None, "original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_in_the_same_precision(adjust_lr_fn, nesterov, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda x: x.clone())  # torch's own cast taken out
    shapes = [(16, 16), (8, 24), (24, 8), (16, 16)]
    mine, yours = ([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes] for _ in range(2))
    options = {"lr": 0.02, "weight_decay": 0.1, "nesterov": nesterov, "adjust_lr_fn": adjust_lr_fn}
    run(optim.Muon(mine, pre=None, **options), torch.optim.Muon(yours, **options), mine, yours, 20)
    for a, b in zip(mine, yours, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_muon_with_other_steps(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda x: x.clone())
    mine, yours = ([torch.nn.Parameter(torch.zeros(8, 12))] for _ in range(2))
    options = (0.02, 0.1, 0.9, False, (2.0, -1.5, 0.5), 1e-7, 7, "match_rms_adamw")  # torch's order
    run(optim.Muon(mine, *options, pre=None), torch.optim.Muon(yours, *options), mine, yours, 5)
    torch.testing.assert_close(mine[0], yours[0], rtol=0, atol=1e-6)


def test_torchs_flags_are_known():
    w = torch.nn.Parameter(torch.zeros(2, 2))
    optim.AdamW([w], foreach=True)
    optim.AdamW([w], fused=True)
    with pytest.warns(UserWarning, match="no kernel for SGD on a CPU"):
        optim.SGD([w], fused=True)
    with pytest.raises(ValueError, match="not supported: leave it False"):
        optim.AdamW([w], differentiable=True)


def test_muon_is_scale_free_where_torchs_is_not():
    """torch divides by max(norm, 1e-7): a tiny gradient stalls."""
    w = torch.nn.Parameter(torch.zeros(16, 16))
    w.grad = 1e-20 * torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    optim.Muon([w], lr=1.0, weight_decay=0.0, pre=None).step()
    assert torch.linalg.svdvals(w.data).max() > 0.6


CASES = [
    (optim.AdamW, torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}, {"post": None}),
    (optim.AdamW, torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}, {"post": None}),
    (optim.SGD, torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}, {}),
    (optim.Muon, torch.optim.Muon, {"lr": 0.01}, {"pre": None}),
]


@pytest.mark.parametrize(("ours", "theirs", "options", "extra"), CASES)
def test_a_torch_checkpoint_loads_and_goes_on(ours, theirs, options, extra, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda x: x.clone())
    g = torch.Generator().manual_seed(0)
    yours = [torch.nn.Parameter(torch.randn(6, 5, generator=g)) for _ in range(2)]
    mine = copy.deepcopy(yours)
    trained = theirs(yours, **options)
    fresh = ours(mine, lr=123.0, **extra)
    run(trained, torch.optim.SGD(copy.deepcopy(yours)), yours, copy.deepcopy(yours), 5)
    with torch.no_grad():
        for a, b in zip(mine, yours, strict=True):
            a.copy_(b)
    fresh.load_state_dict(copy.deepcopy(trained.state_dict()))  # torch keeps the very tensors
    assert fresh.param_groups[0]["lr"] == 0.01
    run(fresh, trained, mine, yours, 5)
    for a, b in zip(mine, yours, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6 if ours is optim.Muon else 0)
