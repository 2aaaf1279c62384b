"""The step under torch.compile, and on a device: one graph, no new one as the learning rate changes, no waiting."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import entryclip as ec
from entryclip import optim

RUNNING = ec.Clip(ec.smooth_shrinkage, ec.Running(ec.Quantile(0.9), beta=0.9))
MAKERS = {
    "adamw": lambda p, lr=1e-2: optim.AdamW(p, lr),
    "adamw, running": lambda p, lr=1e-2: optim.AdamW(p, lr, post=RUNNING, amsgrad=True),
    "adamw, no clip": lambda p, lr=1e-2: optim.AdamW(p, lr, post=None),
    "muon": lambda p, lr=1e-2: optim.Muon(p, lr),
    "sgd": lambda p, lr=1e-2: optim.SGD(p, lr, momentum=0.9, post=ec.hard(0.9)),
    "spectra": lambda p, lr=1e-2: optim.spectra(p, lr),
}


def twins(make, lr):
    torch._dynamo.reset()
    start = [torch.randn(8, 6, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    for learning_rate in (lr, 1e-2):
        params = [torch.nn.Parameter(p.clone()) for p in start]
        yield make(params, learning_rate), params


def train(optimizer, params, step, numbers):
    for number in numbers:
        for i, p in enumerate(params):
            p.grad = torch.randn(8, 6, generator=torch.Generator().manual_seed(10 * number + i))
        lr = optimizer.param_groups[0]["lr"]
        if isinstance(lr, torch.Tensor):
            lr.fill_(1e-2 / (1 + number))
        else:
            optimizer.param_groups[0]["lr"] = 1e-2 / (1 + number)
        step()


@pytest.mark.filterwarnings("ignore")  # torch's own, of its profiler
@pytest.mark.parametrize(
    ("name", "lr"),
    [("adamw", 1e-2), ("adamw, running", torch.tensor(1e-2)), ("adamw, no clip", 1e-2), ("muon", 1e-2), ("sgd", 1e-2)],
)
def test_one_graph_for_all_learning_rates(name, lr):
    (compiled, a), (plain, b) = twins(MAKERS[name], lr)
    counter = CompileCounter()
    step = torch.compile(lambda: compiled.step(), backend=counter, fullgraph=True)
    train(compiled, a, step, range(2))  # the first makes the state, the second finds it there
    assert counter.frame_count == 2
    train(compiled, a, step, range(2, 6))
    assert counter.frame_count == 2
    train(plain, b, plain.step, range(6))
    for p, q in zip(a, b, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_inductor():
    """It would take the learning rate of the second step for all later ones, given as `alpha`."""
    fixed = ec.Clip(ec.hard_clip, ec.Fixed(0.5))
    (compiled, a), (plain, b) = twins(lambda p, lr: optim.AdamW(p, lr, post=fixed), 1e-2)
    train(compiled, a, torch.compile(lambda: compiled.step(), fullgraph=True), range(4))
    train(plain, b, plain.step, range(4))
    for p, q in zip(a, b, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MAKERS)
def test_no_waiting_on_a_device(name):
    """A tensor on `meta` has no values: reading one on the host, or branching on one, raises there."""
    params = [torch.nn.Parameter(torch.empty(shape, device="meta")) for shape in ((16, 8), (3, 16, 8), (5,))]
    params = params[:2] if "muon" in name else params
    optimizer = MAKERS[name](params)
    for _ in range(2):
        for p in params:
            p.grad = torch.empty_like(p)
        optimizer.step()
    with pytest.raises(RuntimeError, match="meta"):  # so it would be seen
        params[0].sum().item()
