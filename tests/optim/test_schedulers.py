"""Every scheduler of torch drives our optimizers as it drives torch's."""

import copy
import inspect

import pytest
import torch
from torch.optim import lr_scheduler

import entryclip as ec
from entryclip import optim
from entryclip.optim.methods.sgd import SGDMethod

ARGUMENTS = {
    "LambdaLR": {"lr_lambda": lambda step: 0.9**step},
    "MultiplicativeLR": {"lr_lambda": lambda step: 0.9},
    "StepLR": {"step_size": 2},
    "MultiStepLR": {"milestones": [2, 4]},
    "ExponentialLR": {"gamma": 0.8},
    "CosineAnnealingLR": {"T_max": 5},
    "ReduceLROnPlateau": {"patience": 0},
    "CyclicLR": {"base_lr": 1e-3, "max_lr": 1e-1, "step_size_up": 3},
    "OneCycleLR": {"max_lr": 1e-1, "total_steps": 12},
    "CosineAnnealingWarmRestarts": {"T_0": 3},
    "ConstantLR": {},
    "LinearLR": {},
    "PolynomialLR": {},
}
COMPOSED = {"SequentialLR", "ChainedScheduler", "LRScheduler"}
ALL = {
    name
    for name, kind in vars(lr_scheduler).items()
    if inspect.isclass(kind) and issubclass(kind, lr_scheduler.LRScheduler) and not name.startswith("_")
}


def test_none_is_forgotten():
    assert set(ARGUMENTS) == ALL - COMPOSED


def schedule(name, optimizer):
    if name == "SequentialLR":
        parts = [lr_scheduler.ConstantLR(optimizer, 0.1, 2), lr_scheduler.ExponentialLR(optimizer, 0.9)]
        return lr_scheduler.SequentialLR(optimizer, parts, milestones=[2])
    if name == "ChainedScheduler":
        return lr_scheduler.ChainedScheduler(
            [lr_scheduler.StepLR(optimizer, 2), lr_scheduler.ExponentialLR(optimizer, 0.9)]
        )
    return getattr(lr_scheduler, name)(optimizer, **ARGUMENTS[name])


def train(name, make):
    p = torch.nn.Parameter(torch.linspace(-1, 1, 24).reshape(4, 6))
    optimizer = make([p])
    scheduler = schedule(name, optimizer)
    rates = []
    for step in range(8):
        p.grad = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
        optimizer.step()
        scheduler.step(1.0) if name == "ReduceLROnPlateau" else scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates, p.detach(), optimizer


@pytest.mark.filterwarnings("ignore:.*epoch parameter")
@pytest.mark.parametrize("name", sorted(ALL - {"LRScheduler"}))
def test_scheduler(name):
    """CyclicLR and OneCycleLR also turn the momentum: SGD's, and Adam's first beta."""
    for ours, theirs in (
        (lambda p: optim.SGD(p, 1e-2, momentum=0.9), lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, foreach=False)),
        (lambda p: optim.AdamW(p, 1e-2, post=None), lambda p: torch.optim.AdamW(p, 1e-2, foreach=False)),
    ):
        (rates, weights, _), (expected_rates, expected, _) = train(name, ours), train(name, theirs)
        assert rates == expected_rates
        assert len(set(rates)) > 1
        assert torch.equal(weights, expected)


@pytest.mark.parametrize("name", ["OneCycleLR", "CosineAnnealingLR"])
def test_with_a_clip_and_the_fast_path(name):
    (_, plain, _), (_, fast, _) = train(name, optim.AdamW), train(name, lambda p: optim.AdamW(p, fused=True))
    torch.testing.assert_close(fast, plain, rtol=1e-6, atol=1e-7)


def a_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(10, 6), torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 6))


@pytest.mark.parametrize("name", ["CyclicLR", "OneCycleLR"])
@pytest.mark.parametrize("method", ["muon", "adamw", "spectra"])
def test_momentum_is_cycled_in_every_group_of_a_model(method, name):
    """Muon's momentum and AdamW's first beta, as if both were set by hand; also after a checkpoint."""
    runs = []
    for by_hand in (False, True):
        model = a_model()
        optimizer = optim.build(model, method, lr=1e-2)
        guide = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 1e-2, momentum=0.9)  # tells what torch would set
        schedulers = [schedule(name, guide)] if by_hand else [schedule(name, guide), schedule(name, optimizer)]
        for step in range(6):
            lr, momentum = guide.param_groups[0]["lr"], guide.param_groups[0]["momentum"]
            if by_hand:
                for group in optimizer.param_groups:
                    group["lr"] = lr
                    group.update({"betas": (momentum, 0.999)} if "betas" in group else {"momentum": momentum})
            optimizer.zero_grad()
            model(torch.arange(10)).square().mean().backward()
            if step == 3 and not by_hand:  # what the scheduler wrote is saved, though no step has used it yet
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            optimizer.step()
            guide.step()
            for scheduler in schedulers:
                scheduler.step()
        runs.append([p.detach().clone() for p in model.parameters()])
    for p, q in zip(*runs, strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("name", ["CyclicLR", "OneCycleLR"])
def test_momentum_is_cycled_where_there_was_none(name):
    (_, ours, _), (_, theirs, _) = (
        train(name, lambda p, kind=kind: kind(p, 1e-2)) for kind in (optim.SGD, torch.optim.SGD)
    )
    assert torch.equal(ours, theirs)


def test_a_method_without_momentum_is_refused_as_torch_refuses_it():
    class Plain(SGDMethod):
        name = "plain"

        def options(self):
            return {"lr": 1e-3, "weight_decay": 0.0}

        def check(self, group):
            pass

    p = torch.nn.Parameter(torch.ones(2, 2))
    with pytest.raises(ValueError, match="must support momentum"):
        lr_scheduler.CyclicLR(optim.Staged([{"params": [p], "method": Plain()}]), 1e-3, 1e-2)


def test_a_scheduler_that_steps_first_is_warned_about():
    """Our step tells schedulers itself that it was called, where they would replace a step of torch's."""
    p = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = optim.SGD([p])
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    assert "step" not in vars(optimizer)
    with pytest.warns(UserWarning, match=r"Detected call of `lr_scheduler.step\(\)` before `optimizer.step\(\)`"):
        scheduler.step()
    p.grad = torch.ones(2, 2)
    other = optim.SGD([p])
    scheduler = lr_scheduler.StepLR(other, 1)
    other.step()
    scheduler.step()  # warnings are errors


def test_stochastic_weight_averages():
    """torch.optim.swa_utils' scheduler, too."""
    p = torch.nn.Parameter(torch.ones(3, 3))
    optimizer = ec.optim.Muon([p], 1e-2)
    scheduler = torch.optim.swa_utils.SWALR(optimizer, swa_lr=1e-3, anneal_epochs=2)
    for _ in range(3):
        p.grad = torch.eye(3)
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-3)
