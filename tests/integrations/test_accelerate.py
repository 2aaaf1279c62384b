"""Accelerate's own wrappers on two real processes: DDP, and FSDP2, which swaps the parameters of an optimizer."""

import copy
import os

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
from processes import on_processes
from torch import nn
from torch.distributed.tensor import DTensor

import entryclip as ec

STEPS = 5


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8))


def batch(step, rank):
    return torch.randn(4, 12, generator=torch.Generator().manual_seed(10 * step + rank))


def make_optimizer(model):
    return ec.optim.build(model, "muon", lr=0.02, other_lr=1e-2)


def on_one_process():
    """The same steps without any wrapper: the mean of both processes' gradients."""
    model = network()
    optimizer = make_optimizer(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        sum(model(batch(step, rank)).square().mean() / 2 for rank in (0, 1)).backward()
        if step == STEPS - 1:
            model[0].weight.grad[3, 5] = 100.0
        optimizer.step()
    return model


def worker(rank, sharded):
    settings = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": 29511}
    os.environ.update({key: str(value) for key, value in settings.items()})
    accelerator = Accelerator(cpu=True)
    if sharded:  # Accelerate chooses FSDP on devices alone; its FSDP2 runs on a CPU as well
        accelerator.state.distributed_type = DistributedType.FSDP
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=1, cpu_ram_efficient_loading=False
        )
        accelerator.state.fsdp_plugin = plugin
    model = network()
    model, optimizer = accelerator.prepare(model, make_optimizer(model))
    assert isinstance(next(model.parameters()), DTensor) == sharded
    for step in range(STEPS):
        optimizer.zero_grad()
        accelerator.backward(model(batch(step, rank)).square().mean())
        if step == STEPS - 1:
            first = next(p for name, p in model.named_parameters() if name.endswith("0.weight"))
            whole = first.grad.full_tensor() if sharded else first.grad
            whole[3, 5] = 100.0
            if sharded:
                first.grad.to_local().copy_(whole.chunk(2)[rank])
        optimizer.step()
    (outlier,) = ec.optim.clip_report(optimizer).outliers
    assert (outlier.name, outlier.place, outlier.value) == ("0.weight", (3, 5), 100.0)
    found = [p.full_tensor() if sharded else p for p in model.parameters()]
    for p, expected in zip(found, on_one_process().parameters(), strict=True):
        torch.testing.assert_close(p, expected, rtol=0, atol=1e-5)
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(saved)
    dist.barrier()


@pytest.mark.parametrize("sharded", [False, True], ids=["ddp", "fsdp2"])
def test_two_processes_take_the_steps_of_one(tmp_path, sharded):
    on_processes(2, worker, tmp_path, sharded)
