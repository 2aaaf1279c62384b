"""When a layer may be computed a few rows at a time, and how many: as many as stay in the cache of a processor.

Under autocast to bf16 the factors of its matrix products are rounded to bf16, where many processors multiply twice as
fast; sums over rows, softmax and loss stay in fp32.
"""

import torch
from torch import Tensor, nn

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_LEAST = 64  # rows of a matrix product: with fewer it is bound by reading the weight


def rows_in_cache(columns: int, *, megabytes: int, least: int = _LEAST) -> int:
    """Return how many rows of fp32 numbers fill so much memory, and at least `least`.

    >>> rows_in_cache(4096, megabytes=1), rows_in_cache(50304, megabytes=8)
    (64, 64)
    """
    return max(least, megabytes * 2**18 // columns)


def can_chunk(x: Tensor, *layers: nn.Module) -> bool:
    """Tell whether an operator may read the weights of these layers and take x a few rows at a time.

    That is so for ordinary linear layers in fp32 on a CPU, also under autocast to bf16. Layers with hooks, replaced
    ones or ones sharded on their own, and torch.func need the modules called one by one; on a GPU the cache plays
    another part.
    """
    if x.device.type != "cpu" or x.dtype != torch.float32 or product_dtype() not in (torch.float32, torch.bfloat16):
        return False
    if not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return all(_is_ordinary(layer) for layer in layers)


def product_dtype() -> torch.dtype:
    """Return the precision to which the factors of matrix products are rounded on a CPU: fp32 without autocast.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     product_dtype()
    torch.bfloat16
    """
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32


def add_product_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to `total`, which may be more precise than the factors."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total.add_(a @ b)


def _is_ordinary(layer: nn.Module) -> bool:
    """Tell whether the layer does nothing but multiply by its weight, in fp32 on a CPU."""
    if type(layer) is not nn.Linear or layer.bias is not None or "forward" in vars(layer):
        return False
    if any(getattr(layer, name) for name in _HOOKS) or torch.nn.modules.module._has_any_global_hook():
        return False
    weight = layer.weight
    return type(weight) in (Tensor, nn.Parameter) and weight.dtype == torch.float32 and weight.device.type == "cpu"
