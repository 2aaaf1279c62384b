"""Every scheduler of torch drives our optimizers as it drives torch's."""

import inspect

import pytest
import torch
from torch.optim import lr_scheduler

import entryclip as ec
from entryclip import optim

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
