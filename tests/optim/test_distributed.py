"""Two and three processes (gloo): DDP, FSDP2 and distributed checkpoints against one process with everything."""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from processes import Traffic, on_processes
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import entryclip as ec
from entryclip import optim

RUNNING = ec.Clip(ec.smooth_shrinkage, ec.Running(ec.Quantile(0.9), beta=0.9))
SPECTRAL = ec.Clip(ec.soft_spectral_clip, ec.Fixed(0.5))
OPTIMIZERS = {
    "adamw": lambda p: optim.AdamW(p, lr=0.02),
    "adamw, clips everywhere": lambda p: optim.AdamW(p, lr=0.02, grad=ec.hard(0.9), post=RUNNING, amsgrad=True),
    "adamw, preserve_rms": lambda p: optim.AdamW(p, lr=0.02, post=ec.smooth(0.9, preserve_rms=True), fused=True),
    "adamw, fused": lambda p: optim.AdamW(p, lr=0.02, post=RUNNING, fused=True),
    "adamw, vectors": lambda p: optim.AdamW(p, lr=0.02, clip_vectors=True, nonfinite="skip"),
    "spectra": lambda p: optim.AdamW(p, lr=0.02, post=SPECTRAL),
    "sgd": lambda p: optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True, grad=RUNNING, post=ec.hard(0.8)),
    "muon": lambda p: optim.Muon(matrices(p), lr=0.02),
    "muon, clips everywhere": lambda p: optim.Muon(matrices(p), lr=0.02, grad=ec.hard(0.9), pre=RUNNING, post=RUNNING),
    "muon, standardized": lambda p: optim.Muon(matrices(p), lr=0.02, pre=ec.standardized()),
    "muon in blocks": lambda p: optim.Muon([{"params": tall(p), "blocks": 3}], lr=0.02, post=ec.hard(0.9)),
    "adamuon": lambda p: optim.AdaMuon(matrices(p), lr=0.02, grad=ec.hard(0.9)),
}


def matrices(params):
    return [p for p in params if p.ndim >= 2]


def tall(params):
    return [p for p in params if p.shape == (9, 7)]


class Model(torch.nn.Module):
    """Sides that no number of processes divides, and fewer rows than processes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            *(
                torch.nn.Linear(7, 9),
                torch.nn.Tanh(),
                torch.nn.Linear(9, 7),
                torch.nn.Linear(7, 9),
                torch.nn.Linear(9, 2),
            )
        )
        self.batch = torch.nn.Parameter(torch.randn(2, 3, 2))

    def forward(self, x):
        return (self.layers(x)[:, None, None, :] * self.batch).sum((1, 2))


def batches(count=5):
    g = torch.Generator().manual_seed(1)
    return [torch.randn(12, 7, generator=g) for _ in range(count)]


def train(model, optimizer, inputs):
    for x in inputs:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def whole_weights(model):
    return [p.full_tensor() if isinstance(p, DTensor) else p.detach().clone() for p in model.parameters()]


def sharded_model():
    model = Model()
    return fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))


def mine(inputs):
    rank, count = dist.get_rank(), dist.get_world_size()
    return [x[rank::count] for x in inputs]


def check_fsdp(rank):
    for name, make in OPTIMIZERS.items():
        alone, together = Model(), sharded_model()
        train(alone, make(list(alone.parameters())), batches(3))
        optimizer = make(list(together.parameters()))
        train(together, optimizer, mine(batches(3)))
        for a, b in zip(whole_weights(alone), whole_weights(together), strict=True):
            torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
        assert str(optimizer.clip_report())


def check_skip(rank):
    """One process's piece is not finite: all of them skip, or all of them raise."""
    for policy in ("skip", "raise"):
        model = sharded_model()
        optimizer = optim.AdamW(model.parameters(), nonfinite=policy)
        train(model, optimizer, mine(batches(1)))
        before = whole_weights(model)
        grad = next(iter(model.parameters())).grad
        if rank == 1:
            grad.to_local().fill_(torch.nan)
        if policy == "raise":
            with pytest.raises(FloatingPointError, match="not finite"):
                optimizer.step()
        else:
            optimizer.step()
            assert optimizer.param_groups[0]["skipped"] == 1
        assert all(torch.equal(a, b) for a, b in zip(before, whole_weights(model), strict=True))


def check_muon_traffic(rank):
    """Counts for the quantiles, and every matrix there and back once."""
    model = sharded_model()
    params = matrices(model.parameters())
    optimizer = optim.Muon(params, lr=0.02)
    model(mine(batches(1))[0]).square().mean().backward()
    with Traffic() as traffic:
        optimizer.step()
    counts = sum(p.shape[:-2].numel() for p in params) * (3 * 4 * (2**11 + 1) + 16)
    assert traffic.bytes <= counts + 2 * 4 * sum(p.numel() for p in params)


def check_collectives(rank):
    """As many exchanges for all matrices as for one: three digits and the ends, and one to see inf and NaN."""
    for options in ({}, {"fused": True}, {"post": RUNNING, "nonfinite": "skip"}):
        model = sharded_model()
        optimizer = optim.AdamW(model.parameters(), lr=0.02, **options)
        train(model, optimizer, mine(batches(1)))
        with Traffic() as traffic:
            optimizer.step()
        assert traffic.calls == (5 if "nonfinite" in options else 4)


def check_ddp(rank):
    model = DistributedDataParallel(Model())
    optimizer = optim.build(model, "muon", lr=0.02, roles={"hidden": {"pre": RUNNING, "post": ec.hard(0.99)}})
    train(model, optimizer, mine(batches()))
    weights = torch.cat([w.ravel() for w in whole_weights(model)])
    every = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(every, weights)
    assert all(torch.equal(weights, other) for other in every)
    alone = Model()
    train(
        alone, optim.build(alone, "muon", lr=0.02, roles={"hidden": {"pre": RUNNING, "post": ec.hard(0.99)}}), batches()
    )
    torch.testing.assert_close(weights, torch.cat([w.ravel() for w in whole_weights(alone)]), rtol=1e-4, atol=1e-5)


def every_check(rank):
    for check in (check_fsdp, check_skip, check_muon_traffic, check_collectives, check_ddp):
        check(rank)


@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.exhaustive), 3])  # 3: uneven shards
def test_on_processes(count, tmp_path):
    on_processes(count, every_check, tmp_path)


def checkpointed(model):
    return optim.build(model, "muon", lr=0.02, roles={"hidden": {"pre": RUNNING}, "vector": {"lr": 1e-3}})


def save(rank, folder):
    model = sharded_model()
    optimizer = checkpointed(model)
    train(model, optimizer, mine(batches(6))[:3])
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/checkpoint")


def resume(rank, folder):
    model = sharded_model()
    for p in model.parameters():
        torch.nn.init.zeros_(p)
    optimizer = checkpointed(model)
    weights, state = get_state_dict(model, optimizer)  # takes a hidden step: nothing may move, nothing may be NaN
    assert all(not p.full_tensor().any() for p in model.parameters())
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/checkpoint")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    assert [int(group["steps"]) for group in optimizer.param_groups] == [3] * len(optimizer.param_groups)
    assert optimizer.param_groups[-1]["lr"] == 1e-3
    assert "matrix of Linear" in optim.explain(optimizer)
    train(model, optimizer, mine(batches(6))[3:])
    alone = Model()
    train(alone, checkpointed(alone), batches(6))
    for a, b in zip(whole_weights(alone), whole_weights(model), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)


def test_saved_on_two_processes_resumed_on_one_and_three(tmp_path):
    on_processes(2, save, tmp_path, str(tmp_path))
    for count in (1, 3):
        on_processes(count, resume, tmp_path, str(tmp_path))


def test_a_copy_of_a_model_is_the_same_model():
    """What the comparisons above rest on."""
    a, b = Model(), copy.deepcopy(Model())
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
