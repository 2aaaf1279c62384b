"""The Triton kernels on the local shards of DTensors, in two processes of the interpreter: the bits of one process.

As test_interpreted.py, this file runs in a process of its own, which test_gpu.py starts.
"""

import functools
import os
import warnings

import pytest
import torch
import torch.distributed as dist

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1: test_gpu.py runs this file with it", allow_module_level=True)
pytest.importorskip("triton")

from fast_calls import fast_calls
from processes import Traffic, on_processes
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import entryclip as ec
from entryclip.optim.kernels import backends
from entryclip.optim.kernels.gpu import GPUBackend

RUNNING = ec.Clip(ec.smooth_shrinkage, ec.Running(ec.Quantile(0.9), beta=0.9))
CLIPS = [ec.smooth(0.9), RUNNING, ec.Clip(ec.hard_clip, ec.Fixed(1.0))]
IN_HALF = functools.partial(ec.optim.AdamW, fp32_state=True)
CASES = [
    *((ec.optim.AdamW, torch.float32, clip) for clip in CLIPS),
    (IN_HALF, torch.bfloat16, ec.smooth(0.9)),
    (ec.optim.SGD, torch.float32, ec.smooth(0.9)),
]
# Sides that two processes do not divide, a matrix that one process has alone, batches cut along each dimension.
SHARDED = [((9, 7), 0), ((1, 6), 0), ((3, 5, 4), 0), ((2, 5, 4), 1), ((2, 4, 5), 2), ((30, 20), 1), ((7,), 0)]


class Backend(GPUBackend):
    tile, block = 512, 512
    steps = 0

    def run(self, plan):
        Backend.steps += 1
        Backend.bound = len(plan.bindings)
        return super().run(plan)


def train(make, params, clip, gradients, place):
    """Step with these gradients, each of them put where its parameter is; returns the collectives of the last step."""
    optimizer = make(params, lr=0.02, weight_decay=0.1, fused=True, post=clip)
    for found in gradients:
        for p, g, (_, dim) in zip(params, found, SHARDED, strict=True):
            p.grad = place(g.to(p.dtype), dim)
        with Traffic() as traffic:
            optimizer.step()
    return optimizer, traffic.calls


def every_clip(rank):
    with fast_calls():
        check_every_clip()


def check_every_clip():
    warnings.simplefilter("ignore")  # numpy's, of what the kernels do on purpose
    backends.BACKENDS["cpu"] = Backend
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape, _ in SHARDED]
    gradients = [[torch.randn(shape, generator=generator) for shape, _ in SHARDED] for _ in range(2)]
    for found in gradients:
        found[0][:5] = 0  # the first process's whole shard: nothing to rank there
    gradients[1][5][0, 0] = torch.inf

    def shard(x, dim):
        return distribute_tensor(x, mesh, [Shard(dim)])

    for make, dtype, clip in CASES:
        values = [x.to(dtype) for x in start]
        alone = [torch.nn.Parameter(x.clone()) for x in values]
        together = [torch.nn.Parameter(shard(x, dim)) for x, (_, dim) in zip(values, SHARDED, strict=True)]
        one, _ = train(make, alone, clip, gradients, lambda g, dim: g.clone())
        Backend.steps = 0
        two, collectives = train(make, together, clip, gradients, shard)
        assert (Backend.steps, Backend.bound) == (2, len(SHARDED))  # the kernels took every parameter at every step
        assert collectives == (0 if clip.rule.level is None else 6)
        for p, q in zip(alone, together, strict=True):
            assert torch.equal(q.full_tensor().nan_to_num(7.0), p.nan_to_num(7.0)), (clip, p.shape)
            for key, value in one.state[p].items():
                other = two.state[q][key]
                other = other.full_tensor() if isinstance(other, torch.distributed.tensor.DTensor) else other
                assert torch.equal(other.nan_to_num(7.0), value.nan_to_num(7.0)), (clip, p.shape, key)


@pytest.mark.parametrize("count", [2])
def test_two_processes_give_the_bits_of_one(count, tmp_path):
    on_processes(count, every_clip, tmp_path)
