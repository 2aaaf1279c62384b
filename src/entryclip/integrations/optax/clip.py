"""A clip as a gradient transformation of optax."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ...clip import Clip
from ...thresholds import State, Step
from .dimension_numbers import Array, DimensionNumbers, Matrices, Tree, map_matrices

LearningRate = float | Array | Callable[[Array], Array]  # a number, or a schedule: a function of the count of steps


class ClipState(NamedTuple):
    """The state of `clip`: how many updates it has seen, and what the threshold rule remembers of each array."""

    count: Array
    memory: Tree  # the parameters' tree, with a dictionary of arrays in place of each parameter


def clip(
    rule: Clip,
    *,
    clip_vectors: bool = False,
    dimension_numbers: DimensionNumbers | None = None,
    learning_rate: LearningRate | None = None,
) -> optax.GradientTransformation:
    """Return the gradient transformation that applies `rule` to each array of the updates.

    rule                the clip, such as `entryclip.smooth(0.99)`; the state keeps what one with memory remembers
    clip_vectors        clip arrays of fewer than two dimensions too, each as a whole
    dimension_numbers   where the matrices lie in arrays that are not plain matrices: see the head of this module
    learning_rate       the rate or schedule of the optimizer, for a rule that follows it (`FollowLR`)

    An entry that is not finite becomes NaN, so that no limit of a clip hides an overflow. `optax.inject_hyperparams`
    takes whatever can be called for a schedule: name clips in its `static_args`.

    >>> import entryclip as ec
    >>> transform = optax.chain(clip(ec.Clip(ec.hard_clip, ec.Fixed(2.0))), optax.sgd(1.0))
    >>> weights = {"w": jnp.zeros((1, 2))}
    >>> updates, _ = transform.update({"w": jnp.array([[1.0, 1000.0]])}, transform.init(weights))
    >>> updates["w"].tolist()
    [[-1.0, -2.0]]
    """
    if not isinstance(rule, Clip):
        raise TypeError(f"rule must be a Clip such as entryclip.smooth(0.99), got {rule!r}")

    def is_clipped(x: Array) -> bool:
        return (x.ndim >= 2 or clip_vectors) and x.size > 0

    def init(params: Tree) -> ClipState:
        def memory(p: Array, numbers: Any) -> State:
            return rule.init(Matrices(p, numbers).of(p)) if is_clipped(p) else {}

        return ClipState(jnp.zeros((), jnp.int32), map_matrices(memory, params, dimension_numbers))

    def update(updates: Tree, state: ClipState, params: Tree | None = None) -> tuple[Tree, ClipState]:
        del params
        step = None if learning_rate is None else Step(_rate(learning_rate, state.count))

        def clipped(x: Array, numbers: Any, memory: State) -> tuple[Array, State]:
            if not is_clipped(x):
                return x, memory
            matrices = Matrices(x, numbers)
            y, memory = rule.update(matrices.of(x), memory, step)
            return jnp.where(jnp.isfinite(x), matrices.restore(y), jnp.nan), memory

        both = map_matrices(clipped, updates, dimension_numbers, state.memory)
        structure: Any = jax.tree.structure(updates)
        new, memory = zip(*structure.flatten_up_to(both), strict=True) if structure.num_leaves else ((), ())
        return structure.unflatten(new), ClipState(optax.safe_increment(state.count), structure.unflatten(memory))

    return optax.GradientTransformation(init, update)


def clip_stages(
    learning_rate: LearningRate, clip_vectors: bool, dimension_numbers: DimensionNumbers | None
) -> Callable[[Clip | None], tuple[optax.GradientTransformation, ...]]:
    """Return the function that turns a clip, or None, into the stages of a chain: one or none."""

    def stage(rule: Clip | None) -> tuple[optax.GradientTransformation, ...]:
        if rule is None:
            return ()
        return (
            clip(
                rule,
                clip_vectors=clip_vectors,
                dimension_numbers=dimension_numbers,
                learning_rate=learning_rate,
            ),
        )

    return stage


def _rate(learning_rate: LearningRate, count: Array) -> Any:
    """Return the learning rate at a step."""
    return learning_rate(count) if callable(learning_rate) else learning_rate
