"""Threshold rules: `rule(x, state, step) -> (threshold, state)`, one threshold per matrix of `x`, of shape (..., 1, 1).

    Fixed(t)                    t
    Quantile(q)                 the q-quantile of the non-zero |entries|: the paper's choice (app:ss)
    Scale(k)                    k times their median: moved little by any contamination below 1/2
    Running(rule, beta, lag)    an average of another rule over the steps
    FollowLR(rule, base_lr)     another rule times lr / base_lr

A rule is a frozen dataclass; its memory is a dict of arrays that the caller keeps: `rule.init(x)` makes it, each call
returns the next. Zeros are not ranked: an embedding whose rows mostly had no gradient would otherwise get threshold 0
and stand still. With nothing to rank (all zero, or no entries at all) the threshold is 0.

Each of these rules declares what it looks at: one quantile of the data, at `rule.level`, or nothing where that is None.
`rule.threshold` computes the threshold from that quantile, so a caller that has it already, from shards or from a pass
of its own, need not hand over the data. Where `rule.threshold_is_known(state)`, it does not even need the quantile.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from .arrays import Array, as_array, check_floating, constant, is_number, matrix_axes, namespace, wide_dtype
from .quantiles.quantile import quantile_abs

State = dict[str, Array]


@dataclass(frozen=True)
class Step:
    """The optimizer's settings at the present step, for rules that depend on more than the data."""

    lr: Any  # a number or a 0-d tensor


@runtime_checkable
class Rule(Protocol):
    """The interface of threshold rules; `entryclip.testing.check_rule` checks one of your own."""

    @property
    def has_memory(self) -> bool: ...

    def init(self, x: Array) -> State: ...

    def __call__(self, x: Array, state: State | None = None, step: Step | None = None) -> tuple[Array, State]: ...


@runtime_checkable
class QuantileRule(Rule, Protocol):
    """A rule that looks at one quantile of each matrix, or at nothing: it can be evaluated without the data."""

    @property
    def level(self) -> float | None: ...

    def threshold_is_known(self, state: State) -> Any: ...

    def threshold(self, quantile: Array, state: State, step: Step | None = None) -> tuple[Array, State]: ...


class _Memoryless:
    """Base of the rules that depend on the present matrix only."""

    @property
    def has_memory(self) -> bool:
        return False

    @property
    def level(self) -> float | None:
        return None

    def init(self, x: Array) -> State:
        return {}

    def threshold_is_known(self, state: State) -> Any:
        """Tell whether the threshold can be computed before the data is read."""
        return self.level is None

    def threshold(self, quantile: Array, state: State, step: Step | None = None) -> tuple[Array, State]:
        """Compute the threshold from the quantile at `level`, of shape (..., 1, 1)."""
        return quantile, {}

    def __call__(self, x: Array, state: State | None = None, step: Step | None = None) -> tuple[Array, State]:
        return self.threshold(ranked(x, self.level), {}, step)


@dataclass(frozen=True)
class Fixed(_Memoryless):
    """The same threshold for every matrix at every step.

    >>> import torch
    >>> Fixed(3.0)(torch.ones(2, 2))
    (tensor([[3.]]), {})
    """

    value: float

    def __post_init__(self) -> None:
        if not (is_number(self.value) and self.value >= 0):
            raise ValueError(f"a threshold must be a number >= 0 (inf switches the clip off), got {self.value!r}")

    def threshold(self, quantile: Array, state: State, step: Step | None = None) -> tuple[Array, State]:
        return namespace(quantile).broadcast_to(constant(self.value, quantile), quantile.shape), {}

    def __str__(self) -> str:
        return f"{self.value:g}"


@dataclass(frozen=True)
class Quantile(_Memoryless):
    """The q-quantile of the non-zero |entries| of each matrix.

    >>> import torch
    >>> Quantile(0.5)(torch.tensor([[-3.0, 0.0], [1.0, 2.0]]))
    (tensor([[2.]]), {})
    """

    q: float

    def __post_init__(self) -> None:
        if not (is_number(self.q) and 0 < self.q <= 1):
            raise ValueError(f"q must be a number in (0, 1], got {self.q!r}")

    @property
    def level(self) -> float:
        return self.q

    def __str__(self) -> str:
        return f"q={self.q}"


@dataclass(frozen=True)
class Scale(_Memoryless):
    """A multiple of the median of the non-zero |entries| of each matrix (0.6745 sigma for Gaussian entries).

    >>> import torch
    >>> Scale(8.0)(torch.tensor([[-3.0, 0.0], [1.0, 2.0]]))
    (tensor([[16.]]), {})
    """

    multiple: float

    def __post_init__(self) -> None:
        if not (is_number(self.multiple) and 0 < self.multiple < float("inf")):
            raise ValueError(f"the multiple of the median must be a positive finite number, got {self.multiple!r}")

    @property
    def level(self) -> float:
        return 0.5

    def threshold(self, quantile: Array, state: State, step: Step | None = None) -> tuple[Array, State]:
        return as_array(float(self.multiple) * quantile), {}

    def __str__(self) -> str:
        return f"{self.multiple:g} x median"


@dataclass(frozen=True)
class Running:
    """The exponential average of another rule's threshold: `average <- beta average + (1 - beta) current`.

    With `lag=1` a step uses the average up to the step before, so its threshold exists before the data is read; with
    `lag=0` the current step counts too. The first usable step uses its own value. A step whose threshold is 0 or not
    finite (no gradient, a spike to inf) changes nothing.

    >>> import torch
    >>> rule, x = Running(Quantile(1.0), beta=0.5), torch.ones(2, 2)
    >>> first, state = rule(x, rule.init(x))
    >>> second, state = rule(9 * x, state)
    >>> third, state = rule(9 * x, state)
    >>> float(first), float(second), float(third)
    (1.0, 1.0, 5.0)
    """

    rule: QuantileRule
    beta: float
    lag: int = 1

    def __post_init__(self) -> None:
        check_rule(self.rule, inside=self)
        if self.rule.has_memory:
            raise ValueError(f"a running average of a rule that has memory itself is not supported, got {self.rule}")
        if not (is_number(self.beta) and 0 <= self.beta < 1):
            raise ValueError(f"beta must be a number in [0, 1), got {self.beta!r}")
        if type(self.lag) is not int or self.lag not in (0, 1):
            raise ValueError(f"lag must be 0 (the current step counts) or 1 (it does not), got {self.lag!r}")

    @property
    def has_memory(self) -> bool:
        return True

    @property
    def level(self) -> float | None:
        return self.rule.level

    def init(self, x: Array) -> State:
        """Return the state before the first step: `average` and `valid` are 0 for each matrix."""
        one = _per_matrix(constant(1.0, x, wide_dtype(x)), x)
        return {"average": 0 * one, "valid": 0 * one}

    def __call__(self, x: Array, state: State | None = None, step: Step | None = None) -> tuple[Array, State]:
        if state is None:
            raise ValueError(f"{self} has memory: pass the state that rule.init(x) or the call before returned")
        check_floating(x)
        return self._blended(self.rule(x, {}, step)[0], state)

    def threshold_is_known(self, state: State) -> Any:
        """True for each matrix once its average exists (after the first usable step), when `lag=1`."""
        return state["valid"] != 0 if self.lag else False

    def threshold(self, quantile: Array, state: State, step: Step | None = None) -> tuple[Array, State]:
        return self._blended(self.rule.threshold(quantile, {}, step)[0], state)

    def _blended(self, current: Array, state: State) -> tuple[Array, State]:
        """Blend the current threshold into the average, of each matrix where it is usable."""
        xp = namespace(current)
        average, fresh = state["average"], state["valid"] == 0
        usable = (current > 0) & (current < float("inf"))
        blended = xp.where(fresh, current, self.beta * average + (1 - self.beta) * current)
        updated = xp.where(usable, blended, average)
        valid = xp.where(usable, xp.ones_like(average), state["valid"])
        threshold = xp.where(fresh, current, average if self.lag else updated)
        return threshold, {"average": updated, "valid": valid}

    def __str__(self) -> str:
        return f"running {self.rule}, beta={self.beta:g}, lag={self.lag}"


@dataclass(frozen=True)
class FollowLR:
    """Another rule's threshold times lr / base_lr: it follows the learning rate, as in the paper's runs of SPECTRA.

    >>> import torch
    >>> from entryclip.thresholds import Step
    >>> FollowLR(Fixed(10.0), base_lr=1e-3)(torch.ones(2, 2), step=Step(lr=5e-4))
    (tensor([[5.]]), {})
    """

    rule: QuantileRule
    base_lr: float

    def __post_init__(self) -> None:
        check_rule(self.rule, inside=self)
        if not (is_number(self.base_lr) and 0 < self.base_lr < float("inf")):
            raise ValueError(f"base_lr must be a positive finite number, got {self.base_lr!r}")

    @property
    def has_memory(self) -> bool:
        return bool(self.rule.has_memory)

    @property
    def level(self) -> float | None:
        return self.rule.level

    def init(self, x: Array) -> State:
        return dict(self.rule.init(x))

    def __call__(self, x: Array, state: State | None = None, step: Step | None = None) -> tuple[Array, State]:
        threshold, state = self.rule(x, state, step)
        return self._followed(threshold, state, step)

    def threshold_is_known(self, state: State) -> Any:
        return self.rule.threshold_is_known(state)

    def threshold(self, quantile: Array, state: State, step: Step | None = None) -> tuple[Array, State]:
        threshold, state = self.rule.threshold(quantile, state, step)
        return self._followed(threshold, state, step)

    def _followed(self, threshold: Array, state: State, step: Step | None) -> tuple[Array, State]:
        """Scale the threshold; one of inf stays, so that a clip that is off is off also at learning rate 0."""
        if step is None:
            raise ValueError(f"{self} needs the learning rate: pass step=Step(lr=...), as an optimizer does")
        if is_number(step.lr) and not step.lr >= 0:
            raise ValueError(f"the learning rate must be >= 0, got {step.lr}")
        followed = threshold * (step.lr / self.base_lr)
        return namespace(threshold).where(threshold == float("inf"), threshold, followed), state

    def __str__(self) -> str:
        return f"{self.rule} x lr/{self.base_lr:g}"


def ranked(x: Array, q: float | None) -> Array:
    """Return the q-quantile of the non-zero |entries| of each matrix, (..., 1, 1); 0 if there are none or q is None."""
    check_floating(x)
    axes = matrix_axes(x)
    if q is None or 0 in x.shape:
        return _per_matrix(constant(0.0, x, wide_dtype(x)), x)
    return _per_matrix(quantile_abs(x, q, dim=axes, nonzero=True), x)


def _per_matrix(t: Array, x: Array) -> Array:
    """Reshape `t`, one value or one per matrix, to the shape that broadcasts over the matrices of `x`."""
    batch, ones = tuple(x.shape[:-2]), (1,) * len(matrix_axes(x))
    return namespace(x).broadcast_to(t.reshape((*t.shape, *ones)), (*batch, *ones))


def check_rule(rule: object, inside: object = None) -> None:
    """Raise a TypeError if `rule` is not a threshold rule, or not one that the rule `inside` can average or scale."""
    if isinstance(rule, type) or not isinstance(rule, Rule):
        raise TypeError(f"expected a threshold rule such as Quantile(0.995), got {rule!r}")
    if inside is not None and not isinstance(rule, QuantileRule):
        need = "takes a rule with one threshold per matrix, such as Quantile(0.995)"
        raise TypeError(f"{type(inside).__name__} {need}, got {rule!r}: use it alone, in a Clip")
