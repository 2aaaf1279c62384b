"""The step under torch.compile, and on a device: one graph, no new one as the learning rate changes, no waiting."""

import pytest
import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounter

import entryclip as ec
from entryclip import optim

RUNNING = ec.Clip(ec.smooth_shrinkage, ec.Running(ec.Quantile(0.9), beta=0.9))
MAKERS = {
    "adamw": lambda p, lr=1e-2: optim.AdamW(p, lr),
    "adamw, running": lambda p, lr=1e-2: optim.AdamW(p, lr, post=RUNNING, amsgrad=True),
    "adamw, no clip": lambda p, lr=1e-2: optim.AdamW(p, lr, post=None),
    "muon": lambda p, lr=1e-2: optim.Muon(p, lr),
    "muon, standardized": lambda p, lr=1e-2: optim.Muon(p, lr, pre=ec.standardized()),
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
    [
        ("adamw", 1e-2),
        ("adamw, running", torch.tensor(1e-2)),
        ("adamw, no clip", 1e-2),
        ("muon", 1e-2),
        ("muon, standardized", 1e-2),
        ("sgd", 1e-2),
    ],
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
@pytest.mark.parametrize(("name", "lr"), [("adamw", 1e-2), ("muon", torch.tensor(1e-2))])
def test_one_graph_with_a_scheduler(name, lr):
    """The wrapper that a scheduler puts around the step of torch's optimizers cannot be traced in a full graph."""
    (compiled, a), (plain, b) = twins(MAKERS[name], lr)
    counter = CompileCounter()
    step = torch.compile(lambda: compiled.step(), backend=counter, fullgraph=True)
    for optimizer, params, act in ((compiled, a, step), (plain, b, plain.step)):
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        for number in range(5):
            for i, p in enumerate(params):
                p.grad = torch.randn(8, 6, generator=torch.Generator().manual_seed(10 * number + i))
            act()
            scheduler.step()
    assert counter.frame_count == 2
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


def training_step(fused):
    """Return a function that takes a whole step of training, its optimizer, a scheduler, and the parameters."""
    torch._dynamo.reset()
    model = torch.nn.Linear(6, 8, bias=False)
    model.weight.data = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    optimizer = optim.AdamW(model.parameters(), lr=1e-2, fused=fused, post=RUNNING)

    def step(x):
        loss = model(x).tanh().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8), list(model.parameters())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fused", [False, True])
def test_a_whole_training_step(fused):
    """Forward, backward and step in one compiled function, with a scheduler: as eager, and compiled in two steps.

    The first step makes the optimizer's state, the second finds it there; the compiler has nothing to do from then on.
    With `fused=True` the optimizer's step is left out of its graphs.
    """
    (step, compiled, schedule, a), (eager_step, _, eager_schedule, b) = training_step(fused), training_step(fused)
    counter = CompileCounter()
    step = torch.compile(step, backend=counter)
    for number in range(6):
        x = torch.randn(16, 6, generator=torch.Generator().manual_seed(number))
        torch.testing.assert_close(step(x), eager_step(x), rtol=1e-6, atol=1e-6)
        if number == 1:
            compilations = counter.frame_count
        schedule.step()
        eager_schedule.step()
    assert counter.frame_count == compilations
    assert bool(compiled._fused) == fused  # the kernel was there, and it took the steps
    for p, q in zip(a, b, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-6)
    assert {int(state["step"]) for state in compiled.state.values()} == {6}


@pytest.mark.filterwarnings("ignore")
def test_a_fused_step_in_a_full_graph_is_an_error_that_says_why():
    torch._dynamo.reset()
    w = torch.nn.Parameter(torch.zeros(4, 4))
    w.grad = torch.ones(4, 4)
    optimizer = optim.AdamW([w], fused=True)
    with pytest.raises(Unsupported, match="the kernels of fused=True take addresses"):
        torch.compile(lambda: optimizer.step(), backend="eager", fullgraph=True)()


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
