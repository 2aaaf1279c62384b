"""Laws of operators and threshold rules.

Operators are run in torch, numpy and, where it is installed, jax, in every float dtype, on the same inputs each time.
"""

import importlib
import importlib.util
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from ..arrays import Array, dtype_name, widen
from ..thresholds import Step

_INF, _NAN = float("inf"), float("nan")
_DTYPES = ("float64", "float32", "bfloat16", "float16")
_ROUNDING = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}


def check_operator(operator: Callable[[Array, Any], Array], *, keeps_large: bool = False) -> None:
    """Check an operator `(x, threshold) -> x` against the laws in `entryclip.operators`.

    `keeps_large=True` is for one that keeps what lies beyond the threshold instead of cutting it (`soft_threshold`):
    threshold 0 then gives x and threshold inf gives 0.
    """
    for x in _inputs((3, 8, 12)):
        _check_laws(operator, x)
        _check_limits(operator, x, keeps_large)
        _check_batch(operator, x)
        _check_edges(operator, x)
    _check_refusals(operator)


def check_rule(rule: Any) -> None:
    """Check a threshold rule against the laws in `entryclip.thresholds`."""
    _expect(pickle.loads(pickle.dumps(rule)) == rule, "a rule survives pickling", rule)
    _expect(bool(str(rule)), "a rule prints as what it is", rule)
    _expect(type(rule).__hash__ is not None, "a rule is frozen: it can be hashed", rule)
    for x in _inputs((3, 8, 12)):
        _check_thresholds(rule, x)
        _check_memory(rule, x)
    for shape in ((0, 4), (2, 0, 3), (5,), ()):
        x = torch.zeros(shape)
        threshold, _ = rule(x, rule.init(x), _STEP)
        _expect(not bool(torch.isnan(threshold).any()), "zeros and empty input give no NaN", rule, shape)


_STEP = Step(lr=1e-3)


def _check_laws(operator: Any, x: Array) -> None:
    before = _values(x).copy()
    y = operator(x, 1.5)
    _expect(
        type(y) is type(x) and y.dtype == x.dtype and y.shape == x.shape, "keeps type, dtype and shape", operator, x
    )
    _expect(np.array_equal(_values(x), before), "leaves its input alone", operator, x)
    _same(operator(-x, 1.5), -y, "is odd", operator)
    _same(operator(4 * x, 6.0), 4 * y, "is homogeneous: op(a x, a t) = a op(x, t)", operator)
    size, new_size = (np.linalg.norm(_values(a)) for a in (x, y))
    _expect(new_size <= size * (1 + _ROUNDING[dtype_name(x)]), "does not enlarge", operator, x)
    _same(operator(x.mT.mT[..., ::2], 1.5), operator(x[..., ::2] + 0, 1.5), "does not mind strides", operator)


def _check_limits(operator: Any, x: Array, keeps_large: bool) -> None:
    for threshold, kept in ((0.0, keeps_large), (_INF, not keeps_large)):
        expected = x if kept else 0 * x
        _same(operator(x, threshold), expected, f"at threshold {threshold} gives {'x' if kept else '0'}", operator)
    broken = x + 0
    broken = _set_first(broken, _NAN)
    _expect(bool(np.isnan(_values(operator(broken, 1.5)).flat[0])), "keeps NaN", operator, x)
    _expect(
        bool(np.isnan(_values(operator(x, _per_matrix(x, _NAN)))).all()), "gives NaN for a NaN threshold", operator, x
    )


def _check_edges(operator: Any, x: Array) -> None:
    """Zeros, infinite entries, vectors, scalars and nothing at all."""
    _same(operator(0 * x, 0.0), 0 * x, "takes zeros at threshold 0 to zeros", operator)
    for part in (x[0, 0], x[0, 0, 0] if not isinstance(x, np.ndarray) else x[0, 0, :1], x[:0], x[:, :0]):
        _expect(
            operator(part, 0.5).shape == part.shape, "takes vectors, scalars and empty arrays", operator, part.shape
        )
    spiked = _values(operator(_set_first(x + 0, _INF), 0.5))[0]
    _expect(
        not np.isnan(spiked).any() or np.isnan(spiked).all(), "gives inf a limit, or no number at all", operator, spiked
    )


def _check_batch(operator: Any, x: Array) -> None:
    thresholds = [0.5, 1.0, 3.0]
    together = operator(x, _per_matrix(x, thresholds))
    for i, threshold in enumerate(thresholds):
        _same(together[i], operator(x[i], threshold), "treats a batch as its matrices one by one", operator)


def _check_refusals(operator: Any) -> None:
    for error, x, threshold in (
        (ValueError, torch.ones(2, 2), -1.0),
        (ValueError, torch.ones(2, 2), _NAN),
        (TypeError, torch.ones(2, 2, dtype=torch.int64), 1.0),
    ):
        try:
            operator(x, threshold)
        except error:
            continue
        raise AssertionError(
            f"{_name(operator)} must refuse x of {x.dtype} at threshold {threshold} with {error.__name__}"
        )


def _check_thresholds(rule: Any, x: Array) -> None:
    threshold, _ = rule(x, rule.init(x), _STEP)
    _expect(
        tuple(threshold.shape) == (*x.shape[:-2], 1, 1), "gives one threshold per matrix, (..., 1, 1)", rule, threshold
    )
    wanted = "float64" if dtype_name(x) == "float64" else "float32"
    _expect(dtype_name(threshold) == wanted, f"gives {wanted} for {dtype_name(x)}", rule, threshold)
    _expect(bool((threshold >= 0).all()), "gives no negative threshold", rule, threshold)
    for i in range(x.shape[0]):
        _same(threshold[i], rule(x[i], rule.init(x[i]), _STEP)[0], "treats a batch as its matrices one by one", rule)


def _check_memory(rule: Any, x: Array) -> None:
    state = rule.init(x)
    kept = {key: _values(value).copy() for key, value in state.items()}
    first, after = rule(x, state, _STEP)
    again, _ = rule(x, state, _STEP)
    _same(first, again, "gives the same answer for the same state", rule)
    _expect(set(after) == set(kept), "keeps the keys of its state", rule, sorted(after))
    _expect(all(np.array_equal(_values(state[key]), kept[key]) for key in kept), "does not write to the state", rule)
    _expect(bool(rule.has_memory) == bool(kept), "has memory exactly if it has state", rule)
    _, idle = rule(0 * x, after, _STEP)
    _expect(all(np.array_equal(_values(idle[key]), _values(after[key])) for key in kept), "is not moved by zeros", rule)


def _inputs(shape: tuple[int, ...]) -> Iterator[Array]:
    """The same Gaussian numbers in every library and dtype."""
    numbers = np.random.default_rng(0).standard_normal(shape)
    for name in _DTYPES:
        yield torch.from_numpy(numbers).to(getattr(torch, name))
        if name != "bfloat16":
            yield numbers.astype(name)
    if importlib.util.find_spec("jax") is not None:
        jnp = importlib.import_module("jax.numpy")
        for name in _DTYPES[1:]:
            yield jnp.asarray(numbers, dtype=name)


def _per_matrix(x: Array, value: Any) -> Array:
    """Thresholds as an array of the library of `x`."""
    t = np.broadcast_to(np.asarray(value, np.float32), (x.shape[0],)).reshape(-1, 1, 1)
    return torch.from_numpy(t.copy()) if isinstance(x, torch.Tensor) else t if isinstance(x, np.ndarray) else _to_jax(t)


def _to_jax(t: np.ndarray) -> Array:
    return importlib.import_module("jax.numpy").asarray(t)


def _set_first(x: Array, value: float) -> Array:
    if hasattr(x, "at"):
        return x.at[(0,) * x.ndim].set(value)
    x[(0,) * x.ndim] = value
    return x


def _values(x: Array) -> np.ndarray:
    x = widen(x)
    return x.detach().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)


def _same(a: Array, b: Array, law: str, subject: Any) -> None:
    tol = _ROUNDING[dtype_name(a)]
    close = np.allclose(_values(a), _values(b), rtol=tol, atol=tol, equal_nan=True)
    _expect(close, law, subject, f"{dtype_name(a)}: {_values(a).ravel()[:4]} against {_values(b).ravel()[:4]}")


def _expect(holds: bool, law: str, subject: Any, case: Any = "") -> None:
    if not holds:
        raise AssertionError(f"{_name(subject)} broke a law: it {law}. Case: {case}")


def _name(subject: Any) -> str:
    return getattr(subject, "__name__", None) or str(subject)
