"""Options shared by all param groups, and the checks that refuse contradictory ones."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..arrays import is_number
from ..clip import Clip
from ..layout import Layout
from .names import given_name
from .norm_rules import NormRule

if TYPE_CHECKING:
    from .methods.method import Method

STAGES = ("grad", "pre", "post")
NONFINITE = ("propagate", "skip", "raise")
HALF = (torch.bfloat16, torch.float16)
Group = dict[str, Any]  # the options and parameters of one param group, as torch keeps them
ParameterState = dict[str, Any]  # the buffers of one parameter, as torch keeps them in `optimizer.state[p]`

# The options that every group has besides its method's own.
COMMON: Group = {
    "grad": None,
    "pre": None,
    "post": None,
    "maximize": False,
    "fused": False,
    "capturable": False,
    "nonfinite": "propagate",
    "fp32_state": False,
    "clip_vectors": False,
    "flatten": False,
    "transposed": False,
    "blocks": 1,
    "steps": 0,
    "skipped": 0,
}


def check_torch_flags(*, differentiable: bool = False) -> None:
    """Refuse flags that torch's optimizers have and ours lack, so that a changed import is enough."""
    if differentiable:
        raise ValueError("differentiable is not supported: leave it False")


def layout_of(group: Group) -> Layout:
    """Return where the matrices lie in the parameters of a group."""
    return Layout(group["flatten"], group["transposed"], group["blocks"])


def clips(group: Group, stage: str, p: Tensor) -> bool:
    """Tell whether this stage clips this parameter: matrices always, vectors and scalars only with `clip_vectors`."""
    return group[stage] is not None and (p.ndim >= 2 or group["clip_vectors"])


def named(group: Group, number: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of group `number` with their names, or with their position where none were given."""
    for i, (p, name) in enumerate(zip(group["params"], _names(group), strict=True)):
        yield name or f"group {number} parameter {i}", p


def name_in(group: Group, p: Tensor) -> str:
    """Return the name of one parameter of a group, for messages."""
    found = enumerate(zip(group["params"], _names(group), strict=True))
    return next((name or f"number {i}" for i, (each, name) in found if each is p), "of no name")


def _names(group: Group) -> Iterator[str | None]:
    """Yield the name of each parameter of a group: the group's own, or that of `name_parameters`, or None."""
    own = group.get("param_names") or [None] * len(group["params"])
    yield from (name or given_name(p) for name, p in zip(own, group["params"], strict=True))


def with_scalar_lr(group: Group) -> Group:
    """Return a group whose learning rate is a number or a tensor without dimensions, for one step.

    A tensor of shape (1,) or (1, 1) is as good to torch's optimizers. In ours it would broadcast with scalars and
    vectors. The tensor without dimensions is a view of it, so that a learning rate that changes in place is followed.
    """
    lr = group["lr"]
    return {**group, "lr": lr.reshape(())} if isinstance(lr, Tensor) and lr.ndim else group


def check_number(name: str, value: Any, below: float = math.inf) -> None:
    """Raise a TypeError where the option `name` is not a number, a ValueError where it is not in [0, below)."""
    allowed = "a finite number >= 0" if below == math.inf else f"a number in [0, {below:g})"
    if not is_number(value):
        raise TypeError(f"{name} must be {allowed}, got {value!r}")
    if not 0 <= value < below:
        raise ValueError(f"{name} must be {allowed}, got {value}")


def _check_lr(lr: Any) -> None:
    """Raise where a learning rate is neither a finite number >= 0 nor a tensor of one such entry."""
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise ValueError(f"lr must be a number or a tensor of one entry, got a tensor of shape {tuple(lr.shape)}")
        lr = float(lr)
    check_number("lr", lr)


def refuse_meta(group: Group, number: int) -> None:
    """Raise where a group with `fused=True` holds parameters without memory, which no kernel can step."""
    if any(p.is_meta for p in group["params"]):  # in every step: no names before they are needed
        name = next(name for name, p in named(group, number) if p.is_meta)
        raise RuntimeError(
            f"fused=True steps parameters by their memory, and parameter {name} is on meta, where there is none: "
            "give the model memory first, model.to_empty(device=...), or make the optimizer with fused=False"
        )


def check_group(group: Group, method: "Method") -> None:
    """Raise where the options of a group make no sense, naming the value and what is allowed."""
    _check_lr(group["lr"])
    check_number("weight_decay", group["weight_decay"])
    if group["nonfinite"] not in NONFINITE:
        raise ValueError(f"nonfinite must be one of {', '.join(NONFINITE)}, got {group['nonfinite']!r}")
    if not isinstance(group["capturable"], bool):
        raise TypeError(f"capturable must be True or False, got {group['capturable']!r}")
    for stage in STAGES:
        if group[stage] is not None and not isinstance(group[stage], Clip):
            raise TypeError(f"{stage} must be a Clip such as entryclip.smooth(0.995), or None, got {group[stage]!r}")
    if not isinstance(group.get("norm"), NormRule | None):
        raise TypeError(
            f"norm must be a rule for the norm of all gradients, such as MaxNorm(1.0), got {group['norm']!r}"
        )
    if group["pre"] is not None and not method.has_sign:
        raise ValueError(f"pre clips before a matrix sign, and {method} has none: use grad or post")
    layout = layout_of(group)
    for p in group["params"]:
        if p.is_complex():
            raise RuntimeError(  # torch's class for what an optimizer does not take
                f"complex parameters are not supported, got {p.dtype}: step torch.view_as_real(p) instead"
            )
        layout.check(p)
    method.check(group)
