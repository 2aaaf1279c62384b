"""The gradient transformations of optax take the steps of the torch optimizers, jitted, without recompiling.

The comparisons run in fp64: in fp32 Adam without any clip drifts by 4e-6 between optax and torch in these 50 steps, by
rounding alone.
"""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from optax.contrib import MuonDimensionNumbers

import entryclip as ec
from entryclip.integrations import optax as ec_optax

STEPS = 50
RUNNING = ec.Clip(ec.hard_clip, ec.Running(ec.Quantile(0.9), beta=0.8))
FOLLOWING = ec.Clip(ec.smooth_shrinkage, ec.FollowLR(ec.Fixed(3.0), base_lr=1e-2))


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def arrays():
    """The weights, (in, out), and the data of a small network, as numpy arrays."""
    draw = np.random.default_rng(0)
    weights = {"first": draw.normal(size=(12, 24)) / 4, "bias": np.zeros(24), "last": draw.normal(size=(24, 16)) / 5}
    data = draw.normal(size=(40, 12)), draw.normal(size=(40, 16))
    return weights, data


def loss(weights, x, y):
    return ((jnp.tanh(x @ weights["first"] + weights["bias"]) @ weights["last"] - y) ** 2).mean()


def run_optax(transform, steps=STEPS):
    """The weights after some jitted steps, and how often the step was compiled."""
    weights, (x, y) = arrays()
    weights = jax.tree.map(jnp.asarray, weights)
    state = transform.init(weights)

    @jax.jit
    def step(weights, state, x, y):
        updates, state = transform.update(jax.grad(loss)(weights, x, y), state, weights)
        return optax.apply_updates(weights, updates), state

    for _ in range(steps):
        weights, state = step(weights, state, x, y)
    return {k: np.asarray(v) for k, v in weights.items()}, step._cache_size()


def run_torch(make, steps=STEPS, schedule=None):
    """The same with a torch optimizer; torch keeps matrices as (out, in)."""
    weights, (x, y) = arrays()
    parameters = {k: torch.nn.Parameter(torch.tensor(v.T.copy())) for k, v in weights.items()}
    optimizer, x, y = make(parameters), torch.tensor(x), torch.tensor(y)
    for count in range(steps):
        for group in optimizer.param_groups if schedule else ():
            group["lr"] = float(schedule(count))
        optimizer.zero_grad()
        hidden = torch.tanh(x @ parameters["first"].mT + parameters["bias"])
        ((hidden @ parameters["last"].mT - y) ** 2).mean().backward()
        optimizer.step()
    return {k: p.detach().numpy().T for k, p in parameters.items()}


def assert_same(found, expected):
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"grad": ec.smooth(0.99), "post": ec.smooth(0.995, preserve_rms=True), "clip_vectors": True},
        {"post": RUNNING},
        {"post": ec.auto()},
    ],
    ids=str,
)
def test_adamw_takes_the_steps_of_torch(options):
    found, compilations = run_optax(ec_optax.adamw(1e-2, weight_decay=0.1, **options))
    expected = run_torch(lambda p: ec.optim.AdamW(p.values(), lr=1e-2, weight_decay=0.1, **options))
    assert_same(found, expected)
    assert compilations == 1


@pytest.mark.parametrize(
    ("options", "torch_options"),
    [
        ({}, {}),
        ({"pre": RUNNING, "nesterov": False, "consistent_rms": 0.2}, {"adjust_lr_fn": "match_rms_adamw"}),
        ({"grad": ec.smooth(0.99), "pre": None, "post": ec.smooth(0.999), "sign": "polar_express"}, {}),
    ],
    ids=str,
)
def test_muon_takes_the_steps_of_torch(options, torch_options):
    """Matrices by Muon, and the bias by AdamW without a clip."""
    torch_options = {"adjust_lr_fn": "original", **options, **torch_options}
    torch_options.pop("consistent_rms", None)

    def make(p):
        hidden = {"params": [p["first"], p["last"]], "method": "muon", "lr": 0.02, "weight_decay": 0.1, **torch_options}
        rest = {"params": [p["bias"]], "method": "adamw", "lr": 1e-2, "weight_decay": 0.0, "post": None}
        return ec.optim.Staged([hidden, rest])

    found, compilations = run_optax(ec_optax.muon(0.02, weight_decay=0.1, adam_learning_rate=1e-2, **options))
    assert_same(found, run_torch(make))
    assert compilations == 1


def test_a_threshold_that_follows_a_schedule():
    schedule = optax.cosine_decay_schedule(1e-2, STEPS)
    found, compilations = run_optax(ec_optax.adamw(schedule, weight_decay=0.0, post=FOLLOWING))
    make = lambda p: ec.optim.AdamW(p.values(), lr=1e-2, weight_decay=0.0, post=FOLLOWING)  # noqa: E731
    assert_same(found, run_torch(make, schedule=schedule))
    assert compilations == 1


def test_without_clips_adamw_is_optax_own():
    found, _ = run_optax(ec_optax.adamw(1e-2, post=None))
    expected, _ = run_optax(optax.adamw(1e-2))
    assert all(np.array_equal(found[k], expected[k]) for k in expected)


def test_a_clip_is_a_stage_of_any_chain():
    clip = ec.smooth(0.9)
    grads = jax.tree.map(jnp.asarray, arrays()[0])
    transform = optax.chain(ec_optax.clip(clip), optax.scale(2.0))
    updates, _ = jax.jit(transform.update)(grads, transform.init(grads))
    assert np.array_equal(updates["first"], 2 * jax.jit(clip)(grads["first"]))
    assert np.array_equal(updates["bias"], 2 * grads["bias"])


def test_the_matrices_of_an_attention_kernel():
    """flax keeps it as (features, heads, head size): one matrix with (features) rows, not a batch of them."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(10, 4, 5)), jnp.float32)
    numbers = MuonDimensionNumbers(reduction_axis=0, output_axis=(1, 2))
    transform = ec_optax.clip(ec.smooth(0.9), dimension_numbers={"kernel": numbers})
    updates, _ = jax.jit(transform.update)({"kernel": x}, transform.init({"kernel": x}))
    expected = ec.smooth(0.9)(torch.tensor(np.asarray(x)).reshape(10, 20)).reshape(10, 4, 5)
    np.testing.assert_allclose(updates["kernel"], expected, atol=1e-6)
    turned = MuonDimensionNumbers(reduction_axis=(1, 2), output_axis=0)  # as the output projection, axes in any order
    optimizer = ec_optax.muon(1.0, pre=None, sign="svd", dimension_numbers={"kernel": turned})
    updates, _ = jax.jit(optimizer.update)({"kernel": x}, optimizer.init({"kernel": x}), {"kernel": x})
    flat = np.asarray(updates["kernel"]).reshape(10, 20)
    np.testing.assert_allclose(flat @ flat.T, np.eye(10), atol=1e-5)
    with pytest.raises(ValueError, match=r"shape \(10, 4, 5\) needs reduction and output axes that are all different"):
        ec_optax.clip(ec.smooth(0.9), dimension_numbers={"kernel": MuonDimensionNumbers(0, 0)}).init({"kernel": x})


def test_arrays_without_dimension_numbers_go_to_adamw():
    weights = {"table": jnp.ones((6, 4)), "w": jnp.eye(4), "conv": jnp.ones((3, 3, 2, 2))}
    numbers = {"table": None, "w": MuonDimensionNumbers(), "conv": None}
    for given in (numbers, lambda _: numbers):
        optimizer = ec_optax.muon(0.1, dimension_numbers=given)
        updates, _ = jax.jit(optimizer.update)(weights, optimizer.init(weights), weights)
        np.testing.assert_allclose(updates["table"], -0.1, rtol=1e-5)  # Adam's first step is the sign
        np.testing.assert_allclose(updates["conv"], -0.1, rtol=1e-5)
        assert abs(float(updates["w"][0, 0])) < 0.13
        assert float(updates["w"][0, 1]) == 0


def test_an_overflow_is_not_hidden():
    x = {"w": jnp.ones((3, 3)).at[1, 1].set(jnp.inf)}
    transform = ec_optax.clip(ec.smooth(0.9))
    updates, _ = jax.jit(transform.update)(x, transform.init(x))
    assert np.isnan(updates["w"][1, 1])
    assert np.isfinite(np.delete(np.asarray(updates["w"]).ravel(), 4)).all()


@pytest.mark.parametrize(
    ("make", "clips"), [(ec_optax.adamw, ("grad", "post")), (ec_optax.muon, ("grad", "pre", "post"))]
)
def test_optax_wrappers(make, clips):
    """Hyperparameters in the state, accumulation over batches, fp32 beside the fp64 switch, a tree that holds None."""
    weights = {"w": jnp.eye(6, 4, dtype=jnp.float32), "b": jnp.ones(4, jnp.float32), "absent": None}
    optimizer = optax.MultiSteps(optax.inject_hyperparams(make, clips)(learning_rate=0.1), every_k_schedule=2)
    state = optimizer.init(weights)
    step = jax.jit(optimizer.update)
    for count in range(4):
        updates, new = step(weights, state, weights)
        assert jax.tree.structure(new) == jax.tree.structure(state)
        assert jax.tree.map(lambda a: (a.shape, a.dtype), new) == jax.tree.map(lambda a: (a.shape, a.dtype), state)
        assert bool((jnp.diag(updates["w"]) < 0).all()) == (count % 2 == 1)
        assert updates["w"].dtype == jnp.float32
        state = new
    assert step._cache_size() == 1


def test_bad_arguments():
    with pytest.raises(TypeError, match=r"rule must be a Clip such as entryclip.smooth\(0.99\), got 0.9"):
        ec_optax.clip(0.9)
    with pytest.raises(ValueError, match="method must be one of newton_schulz"):
        ec_optax.muon(0.1, sign="none")


def test_shards_stay_where_they_are():
    """On two devices a clipped AdamW and Muon step gives the numbers of one device, in the sharding of the weights."""
    code = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from entryclip.integrations import optax as ec_optax
assert len(jax.devices()) == 2
rows = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
w = jnp.asarray(np.random.default_rng(0).normal(size=(16, 8)), jnp.float32)
for optimizer in (ec_optax.adamw(0.1), ec_optax.muon(0.1)):
    step = jax.jit(lambda w: optimizer.update({"w": w}, optimizer.init({"w": w}), {"w": w})[0]["w"])
    sharded = step(jax.device_put(w, rows))
    np.testing.assert_allclose(sharded, step(w), atol=1e-6)
    assert sharded.sharding.is_equivalent_to(rows, 2), sharded.sharding
"""
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, check=True)
