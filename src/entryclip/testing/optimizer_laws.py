"""Laws of optimizers: what a training script relies on, from gradients that are left alone to exact resuming."""

import copy
import io
from typing import Any

import torch
from torch import Tensor, nn

from ..clip import Clip
from ..operators import hard_clip
from ..thresholds import Fixed
from .optimizer_cases import Make, generator, give_gradients, parameters, same_future, tight, train
from .torch_laws import TORCH_LAWS


def check_optimizer(make: Make) -> None:
    """Check `make(params, **options)`, an optimizer class such as `entryclip.optim.AdamW`, on matrices.

    It must take `lr`, `weight_decay` and the clips `grad` and `post` by keyword, also per group.

    >>> from entryclip import optim
    >>> check_optimizer(optim.SGD)
    """
    for check in (
        _reads_gradients_only,
        _leaves_parameters_without_gradient_alone,
        _takes_every_layout,
        _goes_on_from_a_checkpoint,
        _goes_on_as_a_copy,
        _calls_a_closure,
        _obeys_each_group,
        _clips_the_update_not_the_decay,
        _clips_the_gradient,
        _shows_an_overflow,
        _stands_still_at_zero,
        *TORCH_LAWS,
    ):
        try:
            check(make)
        except Exception as error:
            law = check.__name__.strip("_").replace("_", " ")
            case = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            raise AssertionError(
                f"{getattr(make, '__name__', make)} broke a law: an optimizer {law}. {case}"
            ) from error


def _reads_gradients_only(make: Make) -> None:
    params = parameters()
    optimizer = make(params, lr=0.1, post=tight())
    give_gradients(params, 0)
    before = [(p.grad, p.grad.clone()) for p in params if p.grad is not None]
    optimizer.step()
    for p, (grad, value) in zip(params, before, strict=True):
        assert p.grad is grad, "p.grad was replaced"
        assert torch.equal(grad, value), "p.grad was written to"


def _leaves_parameters_without_gradient_alone(make: Make) -> None:
    params = parameters()
    optimizer = make(params, lr=0.1, weight_decay=0.5)
    give_gradients(params, 0)
    params[0].grad = None
    before = params[0].detach().clone()
    optimizer.step()
    assert torch.equal(params[0], before), "a parameter without a gradient moved"


def _takes_every_layout(make: Make) -> None:
    shapes = [(4, 5), (3, 4, 4), (0, 3), (1, 1)]
    params = [nn.Parameter(torch.randn(shape, generator=generator(1))) for shape in shapes]
    params.append(nn.Parameter(torch.randn(6, 4, generator=generator(2)).T))
    give_gradients(params, 0)
    plain = [nn.Parameter(p.detach().clone().contiguous()) for p in params]
    for p, twin in zip(params, plain, strict=True):
        twin.grad = None if p.grad is None else p.grad.clone().contiguous()
    make(params, lr=0.1).step()
    make(plain, lr=0.1).step()
    for p, twin in zip(params, plain, strict=True):
        assert torch.allclose(p, twin, atol=1e-6), f"strides changed the step of shape {tuple(p.shape)}"


def _goes_on_from_a_checkpoint(make: Make) -> None:
    params = parameters()
    optimizer = make(params, lr=0.1)
    train(optimizer, params, 0, 3)
    file = io.BytesIO()
    torch.save([optimizer.state_dict(), [p.detach() for p in params]], file)
    file.seek(0)
    state, weights = torch.load(file, weights_only=True)
    others = [nn.Parameter(w) for w in weights]
    resumed = make(others, lr=0.7)
    resumed.load_state_dict(state)
    same_future(optimizer, params, resumed, others, "a checkpoint")


def _goes_on_as_a_copy(make: Make) -> None:
    params = parameters()
    optimizer = make(params, lr=0.1)
    train(optimizer, params, 0, 3)
    twin = copy.deepcopy(optimizer)
    same_future(optimizer, params, twin, [p for group in twin.param_groups for p in group["params"]], "a copy")


def _calls_a_closure(make: Make) -> None:
    (w, *_) = params = parameters()
    optimizer = make(params, lr=0.1)

    def closure() -> float:
        optimizer.zero_grad()
        loss: Any = w.square().sum()  # torch leaves backward untyped
        loss.backward()
        return float(loss.detach())

    expected = float(w.detach().square().sum())
    loss = optimizer.step(closure)
    assert loss is not None, "step(closure) must return the loss"
    assert abs(loss - expected) < 1e-4, "step(closure) must return the loss of the closure"


def _obeys_each_group(make: Make) -> None:
    a, b, c = (nn.Parameter(torch.ones(4, 4)) for _ in range(3))
    optimizer = make([{"params": [a], "lr": 0.0}, {"params": [b], "weight_decay": 0.5}], lr=0.1, weight_decay=0.0)
    optimizer.add_param_group({"params": [c]})
    for p in (a, b, c):
        p.grad = torch.eye(4)
    optimizer.step()
    assert torch.equal(a, torch.ones(4, 4)), "a group with lr 0 moved"
    difference = (c - b).detach()
    assert torch.allclose(difference, torch.full((4, 4), 0.05), atol=1e-6), "weight_decay is not the group's own"


def _clips_the_update_not_the_decay(make: Make) -> None:
    w = nn.Parameter(torch.ones(4, 4))
    w.grad = torch.randn(4, 4, generator=generator(0))
    make([w], lr=0.1, weight_decay=0.5, post=Clip(hard_clip, Fixed(0.0))).step()
    assert torch.allclose(w, torch.full((4, 4), 0.95), atol=1e-6), "with the update clipped to 0 only the decay is left"


def _clips_the_gradient(make: Make) -> None:
    a, b = (nn.Parameter(torch.ones(4, 4)) for _ in range(2))
    a.grad = torch.full((4, 4), 0.5) + torch.eye(4)
    b.grad = torch.full((4, 4), 0.5)
    make([a], lr=0.1, weight_decay=0.0, grad=Clip(hard_clip, Fixed(0.5))).step()
    make([b], lr=0.1, weight_decay=0.0).step()
    assert torch.allclose(a, b, atol=1e-6), "the gradient was not clipped before it was used"


def _shows_an_overflow(make: Make) -> None:
    w = nn.Parameter(torch.ones(4, 4))
    w.grad = torch.ones(4, 4)
    w.grad[1, 2] = float("inf")
    make([w], lr=0.1, post=tight(), grad=tight()).step()
    assert not bool(torch.isfinite(w[1, 2])), "an infinite gradient vanished in the clip"


def _stands_still_at_zero(make: Make) -> None:
    """Check a step with zero gradients at lr 0, which distributed checkpointing takes to make the state exist."""
    params = parameters()
    optimizer = make(params, lr=0.0)
    for p in params:
        p.grad = torch.zeros_like(p)
    before = [p.detach().clone() for p in params]
    optimizer.step()
    assert all(torch.equal(p, w) for p, w in zip(params, before, strict=True)), "zero gradients at lr 0 moved something"
    values = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]
    assert all(bool(torch.isfinite(v).all()) for v in values), (
        "the state is not finite after a step with zero gradients"
    )
