"""optax: Muon with its momentum clipped before the matrix sign, in a jitted step that is compiled once."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import entryclip as ec
from entryclip.integrations.optax import clip, muon

Weights = dict[str, jax.Array]


def loss(weights: Weights, x: jax.Array, y: jax.Array) -> jax.Array:
    hidden = jnp.tanh(x @ weights["first"] + weights["bias"])
    return ((hidden @ weights["last"] - y) ** 2).mean()


def train(optimizer: optax.GradientTransformation, steps: int = 100) -> tuple[float, float, int]:
    """Return the first and the last loss, and how often the step was compiled."""
    draw = np.random.default_rng(0)
    weights = {
        "first": jnp.asarray(draw.normal(size=(32, 64)) / 6, jnp.float32),
        "bias": jnp.zeros(64),
        "last": jnp.asarray(draw.normal(size=(64, 16)) / 8, jnp.float32),
    }
    truth = draw.normal(size=(32, 16)) / 4

    @jax.jit
    def step(weights: Weights, state: optax.OptState, x: jax.Array, y: jax.Array):
        value, gradients = jax.value_and_grad(loss)(weights, x, y)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, value

    state, losses = optimizer.init(weights), []
    for _ in range(steps):
        x = draw.normal(size=(64, 32)).astype(np.float32)
        weights, state, value = step(weights, state, x, np.tanh(x @ truth).astype(np.float32))
        losses.append(float(value))
    return losses[0], losses[-1], step._cache_size()


def main() -> None:
    schedule = optax.cosine_decay_schedule(0.02, 100)
    optimizers = {
        "muon, pre=smooth(0.99)": muon(schedule, adam_learning_rate=3e-3),
        "any chain of optax's": optax.chain(clip(ec.smooth(0.99)), optax.sgd(0.5, momentum=0.9)),
    }
    for name, optimizer in optimizers.items():
        first, last, compilations = train(optimizer)
        print(f"{name}: loss {first:.3f} -> {last:.3f}, compiled {compilations} time")


if __name__ == "__main__":
    main()
