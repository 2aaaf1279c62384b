"""Every way a matrix can lie in a parameter: the plain step, the C kernel and the Triton kernels take the same one.

flatten, transposed, blocks and batches in every combination, with any order of the dimensions in memory. The Triton
kernels take part where TRITON_INTERPRET=1 is set before they are imported: `test_with_the_interpreter` starts that.
"""

import contextlib
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import entryclip as ec
from entryclip.optim.kernels import backends

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
EXAMPLES = settings.default.max_examples // (6 if INTERPRETED else 1)  # the interpreter takes its time
CLIPS = (
    None,
    ec.smooth(0.9),
    ec.hard(0.5),
    ec.smooth(1.0),
    ec.Clip(ec.hard_clip, ec.Fixed(0.3)),
    ec.Clip(ec.smooth_shrinkage, ec.Running(ec.Quantile(0.9), beta=0.5)),
)
ROUNDED = 3 * 8 * 2.0**-24  # moments may cancel: what is left of three roundings of gradients below 8
METHODS = (ec.optim.AdamW, ec.optim.SGD)
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of numpy, in which the interpreter computes
    pytest.mark.filterwarnings("ignore:fused=True has no kernel for SGD on a CPU"),
]


@st.composite
def cases(draw):
    """Draw a shape with a layout that it allows, an order of its dimensions in memory, and the options of a step."""
    blocks = draw(st.integers(1, 3))
    flatten, transposed = draw(st.booleans()), draw(st.booleans())
    dims = 2 if blocks > 1 else draw(st.integers(1, 4))
    shape = draw(st.lists(st.integers(0, 9), min_size=dims, max_size=dims))
    if blocks > 1:
        shape[1 if transposed else 0] *= blocks
    layout = {"flatten": flatten, "transposed": transposed, "blocks": blocks}
    return tuple(shape), layout, draw(st.permutations(range(dims))), draw(st.sampled_from(CLIPS)), draw(st.booleans())


def stored(x, order):
    """Return the same numbers, with the dimensions in another order in memory."""
    return x.permute(*order).contiguous().permute(*[order.index(i) for i in range(x.ndim)])


def steps(make, case, seed, *, fused):
    """Take three steps, one of them with ties, zeros and a spike; return the weights and the state."""
    shape, layout, order, clip, propagate = case
    draw = torch.Generator().manual_seed(seed)
    w = torch.nn.Parameter(stored(torch.randn(shape, generator=draw), order))
    options = {"post": clip, "nonfinite": "propagate" if propagate else "skip", "fused": fused}
    optimizer = make([{"params": [w], **layout}], lr=1e-2, **options)
    for step in range(3):
        g = torch.randn(shape, generator=draw)
        if step == 1:
            g = (2 * g).round()
            g.view(-1)[:1] = 1e4
        w.grad = stored(g, order)
        optimizer.step()
    return w.detach(), {key: value for key, value in optimizer.state[w].items() if torch.is_tensor(value)}


@contextlib.contextmanager
def triton_backend():
    """Let fused steps on the CPU take the Triton kernels."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "optim" / "kernels"))
    from fast_calls import fast_calls

    from entryclip.optim.kernels.gpu import GPUBackend

    class LargeTiles(GPUBackend):
        tile, block = 2048, 2048  # the number of tiles counts in the interpreter, not their size

    before = backends.BACKENDS["cpu"]
    backends.BACKENDS["cpu"] = LargeTiles
    try:
        with fast_calls():
            yield
    finally:
        backends.BACKENDS["cpu"] = before


def assert_equal(found, expected):
    torch.testing.assert_close(found[0], expected[0], rtol=2e-6, atol=2e-7)
    for key, value in expected[1].items():
        torch.testing.assert_close(found[1][key], value, rtol=2e-6, atol=ROUNDED, msg=f"{key} differs")


@pytest.mark.parametrize("make", METHODS)
@settings(max_examples=EXAMPLES)
@given(case=cases(), seed=st.integers(0, 2**20))
def test_every_layout_takes_the_same_step(make, case, seed):
    expected = steps(make, case, seed, fused=False)
    assert_equal(steps(make, case, seed, fused=True), expected)
    if INTERPRETED:
        with triton_backend():
            assert_equal(steps(make, case, seed, fused=True), expected)


def by_hand(x, layout):
    """Cut a parameter's tensor into its matrices, one at a time and by indices alone."""
    if layout["flatten"] and x.ndim > 2:
        x = torch.stack([row.reshape(-1) for row in x]) if len(x) else x.reshape(0, 0)
    batches = [x] if x.ndim == 2 else [each for part in x for each in by_hand(part, {**layout, "flatten": False})]
    if x.ndim > 2:
        return batches
    whole = batches[0].T if layout["transposed"] else batches[0]
    size = len(whole) // layout["blocks"]
    return [whole[i * size : (i + 1) * size] for i in range(layout["blocks"])]


@given(case=cases())
def test_each_matrix_is_clipped_as_if_it_stood_alone(case):
    """The specification itself: a step of SGD at learning rate 1 shows what the clip made of each matrix."""
    shape, layout, order, _, _ = case
    if len(shape) < 2 or not math.prod(shape):
        return
    g = stored(torch.randn(shape, generator=torch.Generator().manual_seed(0)), order)
    w = torch.nn.Parameter(torch.zeros(shape))
    optimizer = ec.optim.SGD([{"params": [w], **layout}], lr=1.0, post=ec.hard(0.5))
    w.grad = g
    optimizer.step()
    for found, matrix in zip(by_hand(w.detach(), layout), by_hand(g, layout), strict=True):
        torch.testing.assert_close(-found, ec.hard(0.5)(matrix.contiguous()), rtol=0, atol=0)


@pytest.mark.skipif(INTERPRETED, reason="this is the process that it starts")
def test_with_the_interpreter():
    pytest.importorskip("triton", reason="the kernels for GPUs are written in Triton")
    command = [sys.executable, "-m", "pytest", __file__, "-n", "0", "--color=no", "-k", "takes_the_same_step"]
    if settings.default.max_examples > 60:
        command += ["--hypothesis-profile=fuzz", "-o", "timeout=0"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
