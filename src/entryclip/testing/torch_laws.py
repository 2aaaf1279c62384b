"""Laws of optimizers that scripts for torch.optim rely on: learning rates, checkpoints, schedulers, refusals."""

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR

from .optimizer_cases import Make, parameters, same_future, tight, train


def _takes_a_tensor_as_learning_rate(make: Make) -> None:
    """Check tensors of one entry of any shape, followed where they change in place."""
    for count in (1, len(parameters())):  # one parameter may take another path than several
        plain = parameters()[:count]
        optimizer = make(plain, lr=0.1)
        train(optimizer, plain, 0, 1)
        optimizer.param_groups[0]["lr"] = 0.05
        train(optimizer, plain, 1, 2)
        for shape in ((), (1,), (1, 1)):
            params, lr = parameters()[:count], torch.full(shape, 0.1)
            optimizer = make(params, lr=lr)
            train(optimizer, params, 0, 1)
            lr.fill_(0.05)
            train(optimizer, params, 1, 2)
            same = all(torch.allclose(p, q, atol=1e-6) for p, q in zip(params, plain, strict=True))
            assert same, f"a learning rate of shape {shape} gave another step than the number"


def _refuses_a_learning_rate_that_is_no_number(make: Make) -> None:
    for lr in ("0.1", None, -0.1, float("nan"), torch.ones(2)):
        _expect_error((TypeError, ValueError), f"lr={lr!r}", make, parameters(), lr=lr)


def _goes_on_from_a_step_that_is_a_number(make: Make) -> None:
    """Check a checkpoint as torch wrote it before 1.12: the step counter of a parameter is a plain number."""
    params, others = parameters(), parameters()
    optimizer, resumed = make(params, lr=0.1), make(others, lr=0.7)
    train(optimizer, params, 0, 3)
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        state.update({key: value.item() for key, value in state.items() if key == "step" and torch.is_tensor(value)})
    with torch.no_grad():
        for p, q in zip(params, others, strict=True):
            q.copy_(p)
    resumed.load_state_dict(saved)
    same_future(optimizer, params, resumed, others, "a checkpoint whose steps are numbers")


def _lets_schedulers_cycle_its_momentum(make: Make) -> None:
    """Check CyclicLR and OneCycleLR: they run, and the momentum that they set is the one of the step."""
    if not {"momentum", "betas"} & make(parameters(), lr=0.1).defaults.keys():
        return
    ends: list[Tensor] = []
    for peak in (0.9, 0.5):
        params, twins = parameters(), parameters()
        optimizer, twin = make(params, lr=0.1), make(twins, lr=0.1)
        schedule = CyclicLR(optimizer, 0.1, 0.1, step_size_up=2, base_momentum=peak, max_momentum=peak)
        for group in twin.param_groups:
            group.update({"betas": (peak, *group["betas"][1:])} if "betas" in group else {"momentum": peak})
        for step in range(3):
            train(optimizer, params, step, step + 1)
            train(twin, twins, step, step + 1)
            schedule.step()
        same = all(torch.equal(p, q) for p, q in zip(params, twins, strict=True))
        assert same, f"CyclicLR's momentum of {peak} gave another step than the option"
        ends.append(params[0].detach())
    assert not torch.equal(*ends), "the momentum that CyclicLR sets does nothing"
    params = parameters()
    optimizer = make(params, lr=0.1)
    one_cycle = OneCycleLR(optimizer, 0.1, total_steps=4)
    for step in range(3):
        train(optimizer, params, step, step + 1)
        one_cycle.step()


def _keeps_public_attributes_in_a_copy(make: Make) -> None:
    optimizer: Any = make(parameters(), lr=0.1)
    optimizer.tokens_seen = {"train": 7}
    twin = copy.deepcopy(optimizer)
    assert getattr(twin, "tokens_seen", None) == {"train": 7}, "an attribute that was set is lost in the copy"
    assert twin.tokens_seen is not optimizer.tokens_seen, "the copy shares an attribute with the original"


def _refuses_odd_gradients_as_torch_does(make: Make) -> None:
    """Check sparse gradients and complex parameters: they are taken, or refused with a RuntimeError."""
    sparse, complex_one = nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(3, 3, dtype=torch.complex64))
    sparse.grad, complex_one.grad = torch.eye(3).to_sparse(), torch.ones(3, 3, dtype=torch.complex64)
    for options in ({}, {"post": tight()}, {"grad": tight()}):
        for p in (sparse, complex_one):
            with contextlib.suppress(RuntimeError):
                make([p], lr=0.1, **options).step()


def _refuses_a_fused_step_without_memory(make: Make) -> None:
    """Check `fused=True` on parameters on meta, where an optimizer takes that option: a RuntimeError in the step."""
    p = nn.Parameter(torch.ones(4, 4, device="meta"))
    try:
        optimizer = make([p], lr=0.1, fused=True)
    except TypeError:
        return
    p.grad = torch.ones_like(p)
    if any(group["fused"] for group in optimizer.param_groups):
        _expect_error(RuntimeError, "fused=True on meta", optimizer.step)


def _refuses_flattened_parameters(make: Make) -> None:
    """Check a flat piece in place of the matrices, as DeepSpeed's ZeRO-1 and 2 put it: the clip would do nothing."""
    optimizer = make(parameters(), lr=0.1, post=tight())
    flat = nn.Parameter(torch.ones(60))
    flat.grad = torch.ones(60)
    optimizer.param_groups[0]["params"] = [flat]
    _expect_error((ValueError, RuntimeError), "a flat piece in place of matrices", optimizer.step)


def _expect_error(
    kinds: type[Exception] | tuple[type[Exception], ...],
    case: str,
    act: Callable[..., Any],
    *given: Any,
    **options: Any,
) -> None:
    """Raise an AssertionError unless `act(*given, **options)` raises one of these errors."""
    try:
        act(*given, **options)
    except kinds:
        return
    raise AssertionError(f"{case} was accepted")


TORCH_LAWS = (
    _takes_a_tensor_as_learning_rate,
    _refuses_a_learning_rate_that_is_no_number,
    _goes_on_from_a_step_that_is_a_number,
    _lets_schedulers_cycle_its_momentum,
    _keeps_public_attributes_in_a_copy,
    _refuses_odd_gradients_as_torch_does,
    _refuses_a_fused_step_without_memory,
    _refuses_flattened_parameters,
)
