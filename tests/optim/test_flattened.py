"""Parameters that were flattened into one dimension: an error that says why, and what works instead."""

import copy
import warnings

import pytest
import torch
import torch.distributed as dist
from processes import on_processes
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

import entryclip as ec
from entryclip import optim

RUNNING = ec.Clip(ec.smooth_shrinkage, ec.Running(ec.Quantile(0.9), beta=0.9))
INSTEAD = r"fully_shard.*DistributedDataParallel.*ZeroRedundancyOptimizer"


def a_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 6))


def flatten(optimizer):
    """Do as DeepSpeed's ZeRO-1 and 2 do: one flat piece takes the place of a group's parameters."""
    flat = torch.nn.Parameter(torch.cat([p.detach().ravel() for p in optimizer.param_groups[0]["params"]]))
    flat.grad = torch.ones_like(flat)
    optimizer.param_groups[0]["params"] = [flat]


@pytest.mark.parametrize(
    "kind", [optim.AdamW, lambda p: optim.SGD(p, grad=ec.hard(0.9)), lambda p: optim.Muon(list(p)[::2])]
)
def test_matrices_that_were_flattened_since(kind):
    optimizer = kind(a_model().parameters())
    flatten(optimizer)
    with pytest.raises(ValueError, match=r"param group 0 had matrices .* vector of shape \(\d+,\).*" + INSTEAD):
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())  # as a resumed run does
    with pytest.raises(ValueError, match="had matrices"):
        optimizer.step()


def test_without_a_clip_flat_pieces_are_welcome():
    optimizer = optim.AdamW(a_model().parameters(), post=None)
    flatten(optimizer)
    (flat,) = optimizer.param_groups[0]["params"]
    before = flat.detach().clone()
    optimizer.step()
    assert (flat < before).all()  # gradients of ones


def test_vectors_of_their_own_are_no_flat_pieces():
    """Groups of biases, and matrices that leave a group while its biases stay."""
    model = a_model()
    biases = [p for p in model.parameters() if p.ndim < 2]
    for optimizer in (optim.AdamW(biases), optim.AdamW(model.parameters())):
        optimizer.param_groups[0]["params"] = biases
        before = [p.detach().clone() for p in biases]
        for p in biases:
            p.grad = torch.ones_like(p)
        optimizer.step()
        assert all((p < old).all() for p, old in zip(biases, before, strict=True))
        optimizer.param_groups[0]["params"] = []
        optimizer.step()


def test_a_vector_that_is_too_long():
    flat = torch.nn.Parameter(torch.zeros(1 << 20))
    for make in (lambda: optim.AdamW([flat]), lambda: optim.attach(torch.optim.SGD([flat]), grad=ec.hard(0.9))):
        with pytest.raises(ValueError, match=r"\(1048576,\) looks like flattened matrices.*clip_vectors=True"):
            make()
    optim.AdamW([flat], clip_vectors=True)
    optim.AdamW([flat], post=None)


def train(model, optimizer, inputs, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def check_fsdp1(rank):
    for use_orig_params in (False, True):
        model = FullyShardedDataParallel(a_model(), device_id=torch.device("cpu"), use_orig_params=use_orig_params)
        with pytest.raises(ValueError, match="FSDP1 has flattened a parameter.*" + INSTEAD):
            optim.AdamW(model.parameters())
        with pytest.raises(ValueError, match="FSDP1 has flattened a parameter"):
            optim.attach(torch.optim.SGD(model.parameters()), grad=ec.hard(0.9))
        train(model, optim.AdamW(model.parameters(), post=None), torch.ones(2, 6), 1)  # as torch's


ZERO = {
    "adamw": (optim.AdamW, {"post": RUNNING}),
    "sgd": (optim.SGD, {"momentum": 0.9, "grad": RUNNING, "post": ec.smooth(0.9)}),
}


def check_zero(rank):
    """What ZeroRedundancyOptimizer does with ours is what one process does, also after a checkpoint."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns when it is imported

    inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    for kind, options in ZERO.values():
        alone = a_model()
        single = kind(alone.parameters(), lr=0.1, **options)
        model = DistributedDataParallel(a_model())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=kind, lr=0.1, **options)
        schedulers = [torch.optim.lr_scheduler.ExponentialLR(each, 0.5) for each in (single, optimizer)]
        for _ in range(2):
            train(alone, single, inputs)
            train(model, optimizer, inputs[rank::2])
            for scheduler in schedulers:
                scheduler.step()
            for a, b in zip(alone.parameters(), model.parameters(), strict=True):
                torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)
        optimizer.consolidate_state_dict(0)
        saved = [copy.deepcopy(optimizer.state_dict()) if rank == 0 else None]
        dist.broadcast_object_list(saved)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=kind, lr=0.7, **options)
        optimizer.load_state_dict(saved[0])
        train(alone, single, inputs)
        train(model, optimizer, inputs[rank::2])
        for a, b in zip(alone.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)


def every_check(rank):
    warnings.simplefilter("ignore")  # torch's own, of FSDP1
    for check in (check_fsdp1, check_zero):
        check(rank)
    dist.barrier()


def test_on_two_processes(tmp_path):
    on_processes(2, every_check, tmp_path)
