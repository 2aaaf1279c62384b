"""A step of `fused=True` inside `torch.compile`: it breaks the compiler's graph.

Imported only while something is compiled, since `torch.compiler.disable` loads the whole compiler, which takes as long
as torch itself.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .staged import Staged


@torch.compiler.disable(reason="the kernels of fused=True take addresses")  # type: ignore
def step_uncompiled(optimizer: "Staged", closure: Callable[[], Any] | None) -> Any:
    """Take the step as it is: the compiler cannot see what a kernel does by addresses."""
    return optimizer._step(closure)
