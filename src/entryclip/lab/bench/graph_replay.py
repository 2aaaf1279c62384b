"""A check that only a GPU can run: replays of a step captured in a CUDA graph equal eager steps.

Both runs have the same gradients, which are copied to where the first ones were, and the same learning rates.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...clip import Clip
from ...operators import smooth_shrinkage
from ...optim import SGD, AdamW, Muon, Staged
from ...thresholds import Quantile, Running
from .proof import Proof

Step = Callable[[], Any]
Capture = Callable[[Step], Step]  # from a step to what replays it; the step itself is not taken

NAME = "CUDA graphs: a replay equals an eager step to the bit"
SHAPES = ((96, 130), (3, 64, 70), (64, 96), (96, 64))  # the last two share a stack
_RUNNING = Clip(smooth_shrinkage, Running(Quantile(0.99), beta=0.9))
OPTIMIZERS: dict[str, Callable[..., Staged]] = {
    "AdamW": AdamW,
    "AdamW with Running": functools.partial(AdamW, post=_RUNNING),
    "AdamW, fused": functools.partial(AdamW, fused=True),
    "AdamW with Running, fused": functools.partial(AdamW, post=_RUNNING, fused=True),
    "Muon": Muon,
    "Muon, fused": functools.partial(Muon, fused=True),
    "SGD with Running": functools.partial(SGD, momentum=0.9, post=_RUNNING),
    "SGD with Running, fused": functools.partial(SGD, momentum=0.9, post=_RUNNING, fused=True),
}
_WARM_UP, _STEPS = 3, 8


def replays_equal(device: str, capture: Capture | None = None) -> Proof:
    """Compare replays of each optimizer's step with eager steps; without a `capture`, by CUDA graphs on a GPU."""
    if capture is None and device != "cuda":
        return Proof(NAME, True, f"skipped: there are no CUDA graphs on a {device}", skipped=True)
    wrong = []
    for name, make in OPTIMIZERS.items():
        eager, replayed = _trained(device, make, None), _trained(device, make, capture or cuda_graph)
        if not all(torch.equal(a, b) for a, b in zip(eager, replayed, strict=True)):
            error = max(float((a - b).abs().max()) for a, b in zip(eager, replayed, strict=True))
            wrong.append(f"{name} by {error:.1e}")
    return Proof(NAME, not wrong, f"{len(OPTIMIZERS)} optimizers; differ: {', '.join(wrong) or 'none'}")


def cuda_graph(step: Step) -> Step:
    """Capture a step in a CUDA graph and return what replays it."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _trained(device: str, make: Callable[..., Staged], capture: Capture | None) -> list[Tensor]:
    """Return the parameters after some steps, all eager or, with `capture`, replays after the first three."""
    g = torch.Generator().manual_seed(0)
    params: list[Tensor] = [torch.nn.Parameter(torch.randn(shape, generator=g).to(device)) for shape in SHAPES]
    for p in params:
        p.grad = torch.zeros_like(p)
    lr = torch.tensor(0.0, device=device)
    optimizer = make(params, lr=lr, capturable=True)
    step: Step = optimizer.step
    for number in range(_STEPS):
        for p in params:
            assert p.grad is not None
            p.grad.copy_((1 + number % 3) * torch.randn(p.shape, generator=g))
        lr.fill_(1e-2 / (1 + number))
        if capture is not None and number == _WARM_UP:
            step = capture(optimizer.step)
        step()
    return [p.detach() for p in params]
