"""Clip = operator + threshold rule (+ preserve_rms), the only composite; `smooth(q)` and `hard(q)` for short."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .arrays import Array, cast, check_floating, on_host, quiet, widen
from .dtensor import entrywise, is_spread, norms, on_whole
from .operators import ENTRYWISE, hard_clip, scaled_norm, smooth_shrinkage
from .thresholds import Quantile, State, Step, _check_rule

_WIDE = (torch.float32, torch.float64)  # half precision is widened first
_PIECE = 1 << 18  # entries that are clipped at a time: what that takes stays in the cache


@dataclass(frozen=True)
class Clip:
    """An operator with the rule that gives its threshold: one per matrix of a batch.

    `preserve_rms=True` scales the output of each matrix back to the input's root mean square: smooth shrinkage at q =
    .995 keeps only 60 % of a Gaussian matrix's, which acts like a smaller learning rate. It is meant for updates whose
    entries are of one size, such as AdamW's: where a spike makes up the input's root mean square, keeping that blows up
    all the rest.

    >>> import torch
    >>> clip = Clip(hard_clip, Quantile(0.5))
    >>> clip, clip(torch.tensor([[-3.0, 0.0], [1.0, 2.0]]))
    (hard_clip(q=0.5), tensor([[-2.,  0.],
            [ 1.,  2.]]))
    """

    operator: Callable[[Array, Any], Array]
    rule: Any
    preserve_rms: bool = False

    def __post_init__(self) -> None:
        if not callable(self.operator):
            raise TypeError(f"operator must be a function (x, threshold) -> x such as hard_clip, got {self.operator!r}")
        _check_rule(self.rule)
        if not isinstance(self.preserve_rms, bool):
            raise TypeError(f"preserve_rms must be True or False, got {self.preserve_rms!r}")

    @property
    def has_memory(self) -> bool:
        return bool(self.rule.has_memory)

    def init(self, x: Array) -> State:
        """The state before the first step, for an `x` of this shape and dtype."""
        return dict(self.rule.init(x))

    def __call__(self, x: Array) -> Array:
        """`x` clipped; for rules without memory."""
        if self.has_memory:
            raise ValueError(f"{self} has memory: call clip.update(x, state), beginning with state = clip.init(x)")
        return self.update(x, {})[0]

    def update(self, x: Array, state: State, step: Step | None = None) -> tuple[Array, State]:
        """`x` clipped, and the state for the next step."""
        check_floating(x)
        threshold, state = self.rule(x, state, step)
        clipped = self._apply(x, threshold)
        return (_with_rms_of(x, clipped) if self.preserve_rms else clipped), state

    def update_(self, x: Array, state: State, step: Step | None = None, *, finite: bool = False) -> tuple[Array, State]:
        """As `update`, for an `x` that is no longer needed: on the host the result takes its place, piece by piece.

        finite      all entries are known to be: no limit of an operator is asked for
        """
        if not (
            on_host(x) and self.operator in ENTRYWISE and not self.preserve_rms and x.is_contiguous() and x.numel()
        ):
            return self.update(x, state, step)
        check_floating(x)
        threshold, state = self.rule(x, state, step)
        for row, t in zip(x.view(threshold.numel(), -1), threshold.reshape(-1), strict=True):
            if finite and self.operator is smooth_shrinkage and 0 < t < math.inf and x.dtype in _WIDE:
                for piece in torch.split(row, _PIECE):
                    piece.mul_(piece.abs().div_(-t.item()).exp_())  # the same, in two thirds of the time
                continue
            for piece in torch.split(row, _PIECE):
                piece.copy_(self.operator(piece, t))
        return x, state

    def _apply(self, x: Array, threshold: Array) -> Array:
        if not is_spread(x):
            return self.operator(x, threshold)
        if self.operator in ENTRYWISE:
            return entrywise(self.operator, x, threshold)
        return on_whole(lambda whole: self.operator(whole, threshold), x)

    def __repr__(self) -> str:
        name = getattr(self.operator, "__name__", repr(self.operator))
        return f"{name}({self.rule}{', preserve_rms' if self.preserve_rms else ''})"


def smooth(q: float, *, preserve_rms: bool = False) -> Clip:
    """Smooth shrinkage at the q-quantile of |x|: the paper's method (its best: .995 after AdamW, .99 before msign).

    >>> smooth(0.995)
    smooth_shrinkage(q=0.995)
    """
    return Clip(smooth_shrinkage, Quantile(q), preserve_rms)


def hard(q: float, *, preserve_rms: bool = False) -> Clip:
    """Hard clipping at the q-quantile of |x|; `hard(1)` changes nothing.

    >>> hard(0.999, preserve_rms=True)
    hard_clip(q=0.999, preserve_rms)
    """
    return Clip(hard_clip, Quantile(q), preserve_rms)


def _with_rms_of(x: Array, clipped: Array) -> Array:
    """`clipped`, each matrix scaled to the root mean square of `x`'s. Where either is zero or not finite, as it is."""
    xp = check_floating(x)
    if 0 in x.shape:
        return clipped
    if is_spread(x):
        factor = norms(x) / norms(clipped)
        return entrywise(_times, clipped, torch.where(factor.isfinite() & (factor > 0), factor, 1.0))
    (top, _, norm), (new_top, unit, new_norm) = scaled_norm(widen(x)), scaled_norm(widen(clipped))
    with quiet(xp):
        scaled = unit * (norm / new_norm) * top
        sound = (top < float("inf")) & (new_top > 0) & (new_top < float("inf"))
        return cast(xp.where(sound, scaled, widen(clipped)), clipped.dtype)


def _times(x: Array, factor: Array) -> Array:
    return cast(x * factor, x.dtype)
