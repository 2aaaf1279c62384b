"""AdamW, as optax.adamw, with clips."""

from typing import Any

import optax

from ...clip import Clip, smooth
from .clip import LearningRate, clip_stages
from .dimension_numbers import DimensionNumbers


def adamw(
    learning_rate: LearningRate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    weight_decay: float = 1e-4,
    mask: Any = None,
    *,
    nesterov: bool = False,
    grad: Clip | None = None,
    post: Clip | None = smooth(0.995),  # noqa: B008 - frozen
    clip_vectors: bool = False,
    dimension_numbers: DimensionNumbers | None = None,
) -> optax.GradientTransformation:
    """Return `optax.adamw` with entry-wise clipping of the update: the paper's post-clipping.

    The arguments up to `nesterov` are optax's, with its defaults; `weight_decay` is therefore 1e-4, and not the 1e-2 of
    torch. `grad` clips the gradient before the moments, `post` the update before weight decay; None leaves a stage out.
    Smooth shrinkage makes the update smaller, to about 60 % of its root mean square: retune the learning rate, or use
    `post=smooth(0.995, preserve_rms=True)`. To leave embeddings unclipped, combine two of these by `optax.partition`.

    >>> import jax.numpy as jnp
    >>> optimizer = adamw(1e-3)
    >>> weights = {"w": jnp.ones((8, 8)), "b": jnp.ones(8)}
    >>> updates, _ = optimizer.update(weights, optimizer.init(weights), weights)
    >>> f"{float(updates['w'][0, 0]):.1e} {float(updates['b'][0]):.1e}"  # all entries are equal: 1e-3 / e
    '-3.7e-04 -1.0e-03'
    """
    stage = clip_stages(learning_rate, clip_vectors, dimension_numbers)
    return optax.chain(
        *stage(grad),
        optax.scale_by_adam(b1=b1, b2=b2, eps=eps, eps_root=eps_root, mu_dtype=mu_dtype, nesterov=nesterov),
        *stage(post),
        optax.add_decayed_weights(weight_decay, mask),
        optax.scale_by_learning_rate(learning_rate),
    )
