"""Clip the gradient of every microbatch and average the results, for any optimizer (Eq. pre-update-main).

    mean <- mean + (clip(g) - mean) / count        for the gradient g of each microbatch

The paper's theory of pre-clipping clips every sample before averaging, because one extreme sample moves a mean
arbitrarily far.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from ..arrays import widen
from ..clip import Clip
from ..thresholds import State
from .capture import refuse_captured_memory
from .finite import propagated


class ClippedMean:
    """A running mean of clipped gradients, to be written into `.grad` before an optimizer's step.

    Call `collect()` after each backward pass and `write()` before `optimizer.step()`. The mean is kept in fp32 or
    wider. Parameters with fewer than two dimensions are averaged without a clip unless `clip_vectors` is set.

    >>> import entryclip as ec
    >>> w = torch.nn.Parameter(torch.zeros(1, 2))
    >>> mean = ClippedMean([w], ec.Clip(ec.hard_clip, ec.Fixed(1.0)))
    >>> for sample in (torch.tensor([[0.5, 1.0]]), torch.tensor([[0.5, 1000.0]])):
    ...     (w * sample).sum().backward()
    ...     mean.collect()                      # takes the gradient and clears it
    >>> mean.write()                            # now .grad is the mean: optimizer.step()
    >>> w.grad
    tensor([[0.5000, 1.0000]])
    """

    def __init__(self, params: Iterable[Tensor], clip: Clip, *, clip_vectors: bool = False):
        if not isinstance(clip, Clip):
            raise TypeError(f"clip must be a Clip such as entryclip.smooth(0.99), got {clip!r}")
        self.params = list(params)
        self.clip = clip
        self.clip_vectors = clip_vectors
        self.count = 0
        self._means: dict[Tensor, Tensor] = {}
        self._memory: dict[Tensor, State] = {}

    @torch.no_grad()
    def collect(self) -> None:
        """Add every parameter's gradient to the mean and clear it; a missing gradient counts as zero."""
        self.count += 1
        for p in self.params:
            g = torch.zeros_like(p) if p.grad is None else p.grad
            g = self._clipped(p, g) if p.grad is not None else g
            mean = self._means.setdefault(p, torch.zeros_like(widen(g)))
            mean.lerp_(g.to(mean.dtype), 1 / self.count)
            p.grad = None

    @torch.no_grad()
    def write(self) -> None:
        """Set every `.grad` to the mean and start a new one."""
        if not self.count:
            raise RuntimeError("nothing was collected: call collect() after each backward pass, then write()")
        for p in self.params:
            p.grad = self._means[p].to(p.dtype)
        self._means.clear()
        self.count = 0

    def _clipped(self, p: Tensor, g: Tensor) -> Tensor:
        if p.ndim < 2 and not self.clip_vectors:
            return g
        refuse_captured_memory(self.clip)
        memory = self._memory.get(p) or self.clip.init(g)
        clipped, self._memory[p] = self.clip.update(g, memory)
        return propagated(clipped, g)
