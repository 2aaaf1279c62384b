"""Laws of optimizers that scripts for torch.optim rely on: learning rates, checkpoints, schedulers, refusals."""

from collections.abc import Callable
from typing import Any

import torch

from .optimizer_cases import Make, parameters, train


def _takes_a_tensor_as_learning_rate(make: Make) -> None:
    """Check tensors of one entry of any shape, followed where they change in place."""
    plain = parameters()
    optimizer = make(plain, lr=0.1)
    train(optimizer, plain, 0, 1)
    optimizer.param_groups[0]["lr"] = 0.05
    train(optimizer, plain, 1, 2)
    for shape in ((), (1,), (1, 1)):
        for count in (1, len(plain)):  # one parameter may take another path than several
            params, lr = parameters()[:count], torch.full(shape, 0.1)
            optimizer = make(params, lr=lr)
            train(optimizer, params, 0, 1)
            lr.fill_(0.05)
            train(optimizer, params, 1, 2)
            same = all(torch.allclose(p, q, atol=1e-6) for p, q in zip(params, plain, strict=False))
            assert same, f"a learning rate of shape {shape} gave another step than the number"


def _refuses_a_learning_rate_that_is_no_number(make: Make) -> None:
    for lr in ("0.1", None, -0.1, float("nan"), torch.ones(2)):
        _expect_error((TypeError, ValueError), f"lr={lr!r}", lambda lr=lr: make(parameters(), lr=lr))


def _expect_error(kinds: type[Exception] | tuple[type[Exception], ...], case: str, act: Callable[[], Any]) -> None:
    """Raise an AssertionError unless `act()` raises one of these errors."""
    try:
        act()
    except kinds:
        return
    raise AssertionError(f"{case} was accepted")


TORCH_LAWS = (_takes_a_tensor_as_learning_rate, _refuses_a_learning_rate_that_is_no_number)
