"""Clip = operator + threshold rule (+ preserve_rms); `smooth(q)`, `hard(q)` and `auto()` for short."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .arrays import Array, check_floating, on_host
from .auto_threshold import Auto
from .dtensor import apply_entrywise, apply_to_whole, match_norms
from .operators import ENTRYWISE, hard_clip, smooth_shrinkage
from .thresholds import Quantile, Rule, State, Step, check_rule

_WIDE = (torch.float32, torch.float64)  # half precision is widened first
_CHUNK = 1 << 18  # entries that are clipped at a time, so that the temporaries stay in the cache


@dataclass(frozen=True)
class Clip:
    """An operator with the rule that gives its threshold, one for each matrix of a batch.

    Call it on an array to clip that. A rule with memory, such as `Running`, needs `clip.update(x, state)` instead,
    where the caller keeps the state; the optimizers do that for you.

    `preserve_rms=True` scales the output of each matrix back to the input's root mean square: smooth shrinkage at q =
    .995 keeps only 60 % of a Gaussian matrix's, which acts like a smaller learning rate. It is meant for updates whose
    entries are of one size, such as AdamW's: where one large entry makes up the input's root mean square, keeping that
    enlarges all the others.

    >>> import torch
    >>> clip = Clip(hard_clip, Quantile(0.5))
    >>> clip, clip(torch.tensor([[-3.0, 0.0], [1.0, 2.0]]))
    (hard_clip(q=0.5), tensor([[-2.,  0.],
            [ 1.,  2.]]))
    """

    operator: Callable[[Array, Any], Array]
    rule: Rule
    preserve_rms: bool = False

    def __post_init__(self) -> None:
        if not callable(self.operator):
            raise TypeError(f"operator must be a function (x, threshold) -> x such as hard_clip, got {self.operator!r}")
        check_rule(self.rule)
        if not isinstance(self.preserve_rms, bool):
            raise TypeError(f"preserve_rms must be True or False, got {self.preserve_rms!r}")
        if isinstance(self.rule, Auto) and (self.preserve_rms or self.operator not in (hard_clip, smooth_shrinkage)):
            raise ValueError(
                "Auto goes with hard_clip or smooth_shrinkage, and without preserve_rms: it keeps the slope"
            )

    @property
    def has_memory(self) -> bool:
        """True where the threshold depends on earlier steps."""
        return bool(self.rule.has_memory)

    def init(self, x: Array) -> State:
        """Return the state before the first step, for an `x` of this shape and dtype."""
        return dict(self.rule.init(x))

    def __call__(self, x: Array) -> Array:
        """Clip `x`, an array (..., m, n), by a rule without memory."""
        if self.has_memory:
            raise ValueError(f"{self} has memory: call clip.update(x, state), beginning with state = clip.init(x)")
        return self.update(x, {})[0]

    def update(self, x: Array, state: State, step: Step | None = None) -> tuple[Array, State]:
        """Clip `x`, and return it with the state for the next step."""
        check_floating(x)
        if isinstance(self.rule, Auto):
            return self.rule.clip(x, self.operator, state)
        threshold, state = self.rule(x, state, step)
        clipped = self._apply(x, threshold)
        return (match_norms(clipped, x) if self.preserve_rms else clipped), state

    def update_(self, x: Array, state: State, step: Step | None = None, *, finite: bool = False) -> tuple[Array, State]:
        """Do as `update` with an `x` that is no longer needed: on the host the result takes its memory.

        finite      the caller knows that all entries are finite, so no limit of an operator is needed
        """
        in_place = isinstance(x, torch.Tensor) and on_host(x) and x.is_contiguous() and x.numel()
        if not in_place or self.operator not in ENTRYWISE or self.preserve_rms or isinstance(self.rule, Auto):
            return self.update(x, state, step)
        check_floating(x)
        threshold, state = self.rule(x, state, step)
        rows, thresholds = x.view(threshold.numel(), -1), threshold.reshape(-1, 1)
        few = max(_CHUNK // rows.shape[1], 1)  # rows that are clipped at a time, or else parts of a single one
        for some, t in zip(rows.split(few), thresholds.split(few), strict=True):
            bare = finite and self.operator is smooth_shrinkage and x.dtype in _WIDE and _is_inside(t)
            for chunk in torch.split(some, _CHUNK, dim=1):
                if bare:
                    chunk.mul_(chunk.abs().div_(-t.item() if len(t) == 1 else -t).exp_())  # same numbers, 2/3 the time
                else:
                    chunk.copy_(self.operator(chunk, t))
        return x, state

    def threshold(self, x: Array, state: State, step: Step | None = None) -> Array:
        """Return the threshold that `update` would take for these arguments: one per matrix, or one per entry."""
        if isinstance(self.rule, Auto):
            return self.rule.threshold(x, self.operator, state)
        return self.rule(x, state, step)[0]

    def _apply(self, x: Array, threshold: Array) -> Array:
        if self.operator in ENTRYWISE:
            return apply_entrywise(self.operator, x, threshold)
        return apply_to_whole(lambda whole: self.operator(whole, threshold), x)

    def __repr__(self) -> str:
        name = getattr(self.operator, "__name__", repr(self.operator))
        return f"{name}({self.rule}{', preserve_rms' if self.preserve_rms else ''})"


def _is_inside(threshold: torch.Tensor) -> bool:
    """Tell whether all thresholds lie between 0 and infinity, so that no operator needs its limit."""
    return bool(((threshold > 0) & (threshold < math.inf)).all())


def smooth(q: float, *, preserve_rms: bool = False) -> Clip:
    """Return smooth shrinkage at the q-quantile of |x|, the paper's method: best at .995 after AdamW, .99 before msign.

    >>> smooth(0.995)
    smooth_shrinkage(q=0.995)
    """
    return Clip(smooth_shrinkage, Quantile(q), preserve_rms)


def hard(q: float, *, preserve_rms: bool = False) -> Clip:
    """Return hard clipping at the q-quantile of |x|; `hard(1)` changes nothing.

    >>> hard(0.999, preserve_rms=True)
    hard_clip(q=0.999, preserve_rms)
    """
    return Clip(hard_clip, Quantile(q), preserve_rms)


def auto(operator: Callable[[Array, Any], Array] = smooth_shrinkage) -> Clip:
    """Return a clip that decides by itself whether to act and where: see `Auto`. On AdamW: `grad=auto(), post=None`.

    >>> auto(), auto(hard_clip)
    (smooth_shrinkage(auto), hard_clip(auto))
    """
    return Clip(operator, Auto())
