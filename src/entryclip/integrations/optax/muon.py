"""Muon: momentum, then the matrix sign, with clips; AdamW for what is no matrix."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ...clip import Clip, smooth
from ...matrix.sign import msign
from .clip import LearningRate, clip_stages
from .dimension_numbers import Array, DimensionNumbers, Matrices, Tree, map_matrices, plain_matrices


def muon(
    learning_rate: LearningRate,
    *,
    beta: float = 0.95,
    nesterov: bool = True,
    weight_decay: float = 0.0,
    weight_decay_mask: Any = None,
    consistent_rms: float | None = None,
    sign: str = "newton_schulz",
    grad: Clip | None = None,
    pre: Clip | None = smooth(0.99),  # noqa: B008 - frozen
    post: Clip | None = None,
    dimension_numbers: DimensionNumbers | None = None,
    adam_learning_rate: LearningRate | None = None,
    adam_b1: float = 0.9,
    adam_b2: float = 0.999,
    adam_weight_decay: float = 0.0,
) -> optax.GradientTransformation:
    """Return Muon for matrices, with the momentum clipped before the matrix sign, and AdamW without clips for the rest.

    `optax.contrib.muon` has no place for a clip before its matrix sign, so this is a composition of its own. It takes
    the steps of `entryclip.optim.Muon`: the momentum has no bias correction, which in optax's is the one difference.

    consistent_rms      scale the update by this times sqrt(max(in, out)), as `adjust_lr_fn="match_rms_adamw"` does with
                        0.2; by default by sqrt(max(1, out / in))
    sign                the algorithm of the matrix sign, as in `entryclip.msign`
    dimension_numbers   which arrays go to Muon: those with `MuonDimensionNumbers`; those with None go to AdamW. The
                        default is all of two dimensions, (in, out), the tables of embeddings among them: give them None
    adam_...            the options of AdamW, whose learning rate is by default the same

    >>> import numpy as np
    >>> optimizer = muon(0.1, sign="svd", pre=None)
    >>> weights = {"w": jnp.diag(jnp.array([1.0, 2.0, 3.0])), "b": jnp.ones(3)}
    >>> updates, _ = optimizer.update(weights, optimizer.init(weights), weights)
    >>> np.allclose(np.linalg.svd(np.asarray(updates["w"])).S, 0.1)
    True
    """
    msign(jnp.ones((1, 1)), sign)  # says which there are, where there is none of this name
    chosen = plain_matrices if dimension_numbers is None else dimension_numbers
    stage = clip_stages(learning_rate, False, chosen)
    matrices = optax.chain(
        *stage(grad),
        _momentum(beta, nesterov),
        *stage(pre),
        _orthogonalize(sign, consistent_rms, chosen),
        *stage(post),
        optax.add_decayed_weights(weight_decay, weight_decay_mask),
        optax.scale_by_learning_rate(learning_rate),
    )
    rest = optax.adamw(
        learning_rate if adam_learning_rate is None else adam_learning_rate,
        adam_b1,
        adam_b2,
        weight_decay=adam_weight_decay,
        mask=weight_decay_mask,
    )

    def labels(params: Tree) -> Tree:
        return map_matrices(lambda _, numbers: "adamw" if numbers is None else "muon", params, chosen)

    return optax.partition({"muon": matrices, "adamw": rest}, labels)


class _MomentumState(NamedTuple):
    """The momentum of each array."""

    mu: Tree


def _momentum(beta: float, nesterov: bool) -> optax.GradientTransformation:
    """Return the transformation mu <- beta mu + (1 - beta) g, with `nesterov` once more for what it hands on."""

    def blend(g: Array, mu: Array) -> Array:
        return beta * mu + (1 - beta) * g

    def init(params: Tree) -> _MomentumState:
        return _MomentumState(jax.tree.map(jnp.zeros_like, params))

    def update(updates: Tree, state: _MomentumState, params: Tree | None = None) -> tuple[Tree, _MomentumState]:
        del params
        mu = jax.tree.map(blend, updates, state.mu)
        return (jax.tree.map(blend, updates, mu) if nesterov else mu), _MomentumState(mu)

    return optax.GradientTransformation(init, update)


def _orthogonalize(
    sign: str, consistent_rms: float | None, dimension_numbers: DimensionNumbers
) -> optax.GradientTransformation:
    """Return the transformation to the matrix sign, scaled by the shape of the matrix."""

    def orthogonal(x: Array, numbers: Any) -> Array:
        matrices = Matrices(x, numbers)
        ins, outs = matrices.matrices[-2:]
        factor = math.sqrt(max(1, outs / ins)) if consistent_rms is None else consistent_rms * math.sqrt(max(ins, outs))
        return matrices.restore(msign(matrices.of(x), sign)) * factor

    return optax.stateless(lambda updates, _: map_matrices(orthogonal, updates, dimension_numbers))
