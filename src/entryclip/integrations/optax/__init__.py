"""Entry-wise clips as gradient transformations of optax, and AdamW and Muon with such clips.

    clip(rule)      any `Clip` as a stage of an `optax.chain`
    adamw(...)      gradient -> [grad clip] -> Adam's moments -> [post clip] -> weight decay, learning rate
    muon(...)       gradient -> [grad clip] -> momentum -> [pre clip] -> matrix sign -> [post clip] -> decay, rate

They take the steps of the torch optimizers of the same names. All of it can be jitted. An array that is sharded over
devices stays sharded.

Clips act on arrays of two or more dimensions, one threshold per matrix. The matrix of a two-dimensional array is the
array; leading dimensions are a batch. Where that is not so, as in the kernels of flax's attention, (features, heads,
head size), say so with `dimension_numbers`, by optax's own `MuonDimensionNumbers`.
"""

try:
    import optax  # noqa: F401
except ImportError as error:
    raise ImportError("this module needs optax: pip install 'entryclip[optax]'") from error

from .adamw import adamw
from .clip import ClipState, clip
from .muon import muon

__all__ = ["ClipState", "adamw", "clip", "muon"]
