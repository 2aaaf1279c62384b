"""The clip of the norm of all gradients together, before every other stage, by the rules of `norm_rules`.

The norm is taken over all parameters of the optimizer, also those of groups without a rule. What a rule remembers is
kept in its group (`norm_mean`, ...), where a state dict has it. So a parameter that has no gradient in some step does
not change it.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..dtensor import is_dtensor, norms
from .groups import HALF, Group
from .norm_rules import NormRule


def total_norm(gradients: Iterable[Tensor]) -> Tensor:
    """Return the Euclidean norm of all gradients together, a tensor without dimensions, on every process the same.

    >>> total_norm([torch.full((2, 2), 2.0), torch.tensor([3.0])])
    tensor(5., dtype=torch.float64)
    """
    each = [_norm(g) for g in gradients]
    if not each:
        return torch.zeros((), dtype=torch.float64)
    home = each[0].device
    together = torch.stack([norm.to(home) for norm in each])
    return torch.linalg.vector_norm(together.float() if home.type == "mps" else together.double())


def _norm(g: Tensor) -> Tensor:
    """Return the norm of one tensor; half precision is summed in fp32."""
    if is_dtensor(g):
        return norms(g).square().sum().sqrt()
    return torch.linalg.vector_norm(g, dtype=torch.float32 if g.dtype in HALF else None)


def follow_norms_(groups: list[Group]) -> dict[int, Tensor]:
    """Return the factor of the gradients of each group that has a norm rule, by its number, and update its memory."""
    if all(group.get("norm") is None for group in groups):
        return {}
    total = total_norm(p.grad for group in groups for p in group["params"] if p.grad is not None)
    factors = {}
    for number, group in enumerate(groups):
        rule: NormRule | None = group.get("norm")
        if rule is None:
            continue
        memory = {key: group.get(f"norm_{key}", value).to(value) for key, value in rule.init(total).items()}
        limit, following = rule.limit(total, memory)
        for key, value in following.items():
            group[f"norm_{key}"] = memory[key].copy_(value)  # in place, for CUDA graphs
        factors[number] = torch.where(total > limit, limit / total, 1.0)
    return factors


def scaled_gradient(g: Tensor, factor: Any) -> Tensor:
    """Return the gradient times the factor of its group's norm rule; as it is where there is none or it is 1."""
    if factor is None or (factor.is_cpu and not torch.compiler.is_compiling() and factor.item() == 1):
        return g
    return g * factor.to(g.device)
